#include "weights/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "weights/printable.h"
#include "weights/shard_index.h"

namespace tandem::weights {

namespace {

namespace fs = std::filesystem;

// File systems stamp with the kernel's clock tick, at most 10 ms; two writes within one tick leave
// the same time.
constexpr int64_t kYoungNs = 100'000'000;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Also true for a dangling symbolic link: opening it gives the better error.
bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(fs::symlink_status(path, code));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const fs::path& folder) {
  std::error_code code;
  const fs::file_status status = fs::status(folder, code);
  if (!fs::exists(status)) {
    return Error{
        code && code != std::errc::no_such_file_or_directory && code != std::errc::not_a_directory
            ? ErrorKind::kIo
            : ErrorKind::kNotFound,
        folder.string() + ": no such model folder"};
  }
  if (!fs::is_directory(status)) {
    return invalid(folder.string() + ": expected a model folder, found a file");
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->opened_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  checkpoint->folder_ = fs::canonical(folder, code);
  if (code) return Error{ErrorKind::kIo, folder.string() + ": " + code.message()};
  TANDEM_ASSIGN(checkpoint->config_json_,
                read_text_file(checkpoint->folder_ / "config.json", kMaxConfigBytes));
  if (is_there(checkpoint->folder_ / kSingle)) {
    TANDEM_TRY(checkpoint->open_single());
  } else if (is_there(checkpoint->folder_ / kIndex)) {
    TANDEM_TRY(checkpoint->open_index());
  } else {
    const bool pickled = is_there(checkpoint->folder_ / "pytorch_model.bin") ||
                         is_there(checkpoint->folder_ / "pytorch_model.bin.index.json");
    return Error{ErrorKind::kNotFound,
                 folder.string() + ": expected " + kSingle + " or " + kIndex + ", found " +
                     (pickled ? "only pytorch_model.bin, which Tandem does not read" : "neither")};
  }
  TANDEM_TRY(checkpoint->list_tensors());
  return checkpoint;
}

Status Checkpoint::open_single() {
  TANDEM_ASSIGN(auto file, SafetensorsFile::open(folder_ / kSingle));
  for (const StoredTensor& tensor : file->tensors()) where_.emplace(tensor.name, file.get());
  files_.push_back(std::move(file));
  return {};
}

Status Checkpoint::open_index() {
  const fs::path path = folder_ / kIndex;
  TANDEM_ASSIGN(const std::string json, read_text_file(path, kMaxIndexBytes));
  auto index = parse_shard_index(json);
  if (!index.ok()) return index.error().in(path.string());

  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [tensor, shard] : *index) shards.emplace(shard, nullptr);
  uint64_t held = 0;
  for (auto& [shard, file] : shards) {
    auto opened = SafetensorsFile::open(folder_ / shard);
    if (!opened.ok()) {
      // The shard's own error names its file; only "missing" needs to say who asked for it.
      if (opened.error().kind != ErrorKind::kNotFound) return opened.error();
      return Error{ErrorKind::kNotFound, path.string() + ": names " + shard +
                                             ", which is missing: " + opened.error().message};
    }
    file = opened->get();
    held += file->tensors().size();
    files_.push_back(std::move(*opened));
  }
  for (const auto& [tensor, shard] : *index) {
    const SafetensorsFile* file = shards[shard];
    if (file->find(tensor) == nullptr) {
      return invalid((folder_ / shard).string() + ": expected tensor " + printable(tensor) +
                     ", which " + kIndex + " says is here; found no such tensor");
    }
    where_.emplace(tensor, file);
  }
  unlisted_ = held - index->size();
  return {};
}

Status Checkpoint::list_tensors() {
  uint64_t total = 0;
  for (const auto& [name, file] : where_) {
    auto info = weight_info(*file->find(name));
    if (!info.ok()) continue;  // reported if anybody asks for it: see read()
    if (__builtin_add_overflow(total, info->bytes(), &total) || total >> 63 != 0) {
      return invalid(folder_.string() + ": expected less than 2^63 bytes of tensors");
    }
    tensors_.push_back(std::move(*info));
  }
  if (tensors_.empty()) {
    return invalid(folder_.string() + ": expected F32, F16 or BF16 tensors, found none");
  }
  return {};
}

uint64_t Checkpoint::bytes() const {
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors_) total += tensor.bytes();
  return total;
}

const TensorInfo* Checkpoint::find(std::string_view tensor) const {
  const auto place = std::lower_bound(
      tensors_.begin(), tensors_.end(), tensor,
      [](const TensorInfo& entry, std::string_view wanted) { return entry.name < wanted; });
  return place != tensors_.end() && place->name == tensor ? &*place : nullptr;
}

Result<TensorData> Checkpoint::read(std::string_view tensor) {
  const auto entry = where_.find(tensor);
  if (entry == where_.end()) {
    return Error{ErrorKind::kNotFound, folder_.string() + ": no tensor " + printable(tensor)};
  }
  return entry->second->read(tensor);
}

TensorIdentity Checkpoint::identity(std::string_view tensor) const {
  TensorIdentity identity;
  if (const auto told = contents_.find(tensor); told != contents_.end()) {
    identity.content = told->second;
  }
  const auto entry = where_.find(tensor);
  if (entry == where_.end()) return identity;
  const FileIdentity& file = entry->second->file().identity();
  if (std::max(file.modified_ns, file.changed_ns) > opened_ns_ - kYoungNs) return identity;
  const StoredTensor* stored = entry->second->find(tensor);
  ByteWriter writer;
  writer.text(file.path);
  writer.write(file.size);
  writer.write(file.modified_ns);
  writer.write(file.changed_ns);
  writer.write(file.inode);
  writer.write(stored->offset);
  writer.write(stored->bytes);
  identity.place = sha256(writer.bytes());
  return identity;
}

void Checkpoint::tell_content(std::string_view tensor, const Digest& sha256) {
  contents_[std::string(tensor)] = sha256;
}

Checkpoint::Place Checkpoint::place(const TensorInfo& tensor) const {
  const auto entry = where_.find(tensor.name);
  if (entry == where_.end()) return {};
  const StoredTensor* stored = entry->second->find(tensor.name);
  return {&entry->second->file(), stored->offset, stored->bytes};
}

}  // namespace tandem::weights
