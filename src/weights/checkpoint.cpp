#include "weights/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "weights/gguf_model.h"
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
  const bool file = !fs::is_directory(status);
  if (file && !is_gguf(folder)) {
    return invalid(folder.string() + ": expected a model folder or a GGUF file, found a file that" +
                   " does not begin with GGUF");
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->opened_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  // A split file's parts are found by its name, which is not that of what a link points to.
  checkpoint->folder_ =
      file ? fs::absolute(folder, code).lexically_normal() : fs::canonical(folder, code);
  if (code) return Error{ErrorKind::kIo, folder.string() + ": " + code.message()};
  if (file) {
    TANDEM_TRY(checkpoint->open_gguf_file(checkpoint->folder_));
  } else {
    TANDEM_TRY(checkpoint->open_folder());
  }
  TANDEM_TRY(checkpoint->list_tensors());
  return checkpoint;
}

Status Checkpoint::open_gguf_file(const fs::path& path) {
  TANDEM_ASSIGN(auto model, open_gguf(path));
  gguf_ = std::make_unique<GgufHeader>(std::move(model.header));
  config_json_ = std::move(model.config_json);
  files_ = std::move(model.files);
  for (StoredWeight& weight : model.weights) {
    const std::string name = weight.info.name;
    if (!weights_.emplace(name, std::move(weight)).second) {
      return invalid(folder_.string() + ": two tensors become " + printable(name));
    }
  }
  return {};
}

Status Checkpoint::open_journal() {
  TANDEM_ASSIGN(lock_, JournalLock::open(folder_));
  if (lock_ == nullptr) return {};
  partial_ = !lock_->journal().complete();
  for (const PulledFile& file : lock_->journal().files) {
    if (!file.name.ends_with(".gguf") || file.complete()) continue;
    return Error{ErrorKind::kNotFound,
                 (folder_ / file.name).string() + ": only " + std::to_string(file.present()) +
                     " of " + std::to_string(file.size) + " bytes are here; 'tandem pull " +
                     lock_->journal().model + "' fetches the rest"};
  }
  return {};
}

Result<std::unique_ptr<SafetensorsFile>> Checkpoint::open_file(const std::string& name) const {
  if (!partial_) return SafetensorsFile::open(folder_ / name);
  const PulledFile* file = lock_->journal().find(name);
  constexpr uint64_t kLength = 8;
  if (file == nullptr || !file->has(0, std::min(kLength, file->size))) {
    return Error{ErrorKind::kNotFound, (folder_ / name).string() +
                                           ": its list of tensors is not here; 'tandem pull " +
                                           lock_->journal().model + "' fetches it"};
  }
  return SafetensorsFile::open(folder_ / name, !file->complete());
}

Status Checkpoint::check_here(const StoredWeight& weight) const {
  if (!partial_) return {};
  for (const FilePiece& piece : weight.pieces) {
    const std::string name = fs::path(piece.file->identity().path).filename().string();
    const PulledFile* file = lock_->journal().find(name);
    if (file != nullptr && file->has(piece.offset, piece.bytes)) continue;
    return Error{ErrorKind::kNotFound,
                 folder_.string() + ": tensor " + printable(weight.info.name) +
                     " is not here, only a part of the model is; 'tandem pull " +
                     lock_->journal().model + "' fetches the rest"};
  }
  return {};
}

Status Checkpoint::open_folder() {
  TANDEM_TRY(open_journal());
  if (!is_there(folder_ / "config.json")) {
    const auto models = gguf_models(folder_);
    if (models.size() == 1) {
      folder_ = models.front();
      return open_gguf_file(folder_);
    }
    if (models.size() > 1) {
      return Error{ErrorKind::kNotFound, folder_.string() + ": expected one model, found " +
                                             std::to_string(models.size()) +
                                             " GGUF files; name one of them"};
    }
  }
  TANDEM_ASSIGN(config_json_, read_text_file(folder_ / "config.json", kMaxConfigBytes));
  StoredTensors found;
  if (is_there(folder_ / kSingle)) {
    TANDEM_TRY(open_single(found));
  } else if (is_there(folder_ / kIndex)) {
    TANDEM_TRY(open_index(found));
  } else {
    const bool pickled = is_there(folder_ / "pytorch_model.bin") ||
                         is_there(folder_ / "pytorch_model.bin.index.json");
    return Error{ErrorKind::kNotFound,
                 folder_.string() + ": expected " + kSingle + " or " + kIndex + ", found " +
                     (pickled ? "only pytorch_model.bin, which Tandem does not read" : "neither")};
  }
  return list_stored(found);
}

Status Checkpoint::open_single(StoredTensors& found) {
  TANDEM_ASSIGN(const auto file, open_file(kSingle));
  for (const StoredTensor& tensor : file->tensors()) {
    found.emplace(tensor.name, StoredPlace{tensor, file->shared_file()});
  }
  files_.push_back(file->shared_file());
  return {};
}

Status Checkpoint::open_index(StoredTensors& found) {
  const fs::path path = folder_ / kIndex;
  TANDEM_ASSIGN(const std::string json, read_text_file(path, kMaxIndexBytes));
  auto index = parse_shard_index(json);
  if (!index.ok()) return index.error().in(path.string());

  std::map<std::string, std::unique_ptr<SafetensorsFile>> shards;
  for (const auto& [tensor, shard] : *index) shards.emplace(shard, nullptr);
  uint64_t held = 0;
  for (auto& [shard, file] : shards) {
    auto opened = open_file(shard);
    if (!opened.ok()) {
      // The shard's own error names its file; only "missing" needs to say who asked for it.
      if (opened.error().kind != ErrorKind::kNotFound) return opened.error();
      return Error{ErrorKind::kNotFound, path.string() + ": names " + shard +
                                             ", which is missing: " + opened.error().message};
    }
    file = std::move(*opened);
    held += file->tensors().size();
    files_.push_back(file->shared_file());
  }
  for (const auto& [tensor, shard] : *index) {
    const SafetensorsFile& file = *shards[shard];
    const StoredTensor* stored = file.find(tensor);
    if (stored == nullptr) {
      return invalid((folder_ / shard).string() + ": expected tensor " + printable(tensor) +
                     ", which " + kIndex + " says is here; found no such tensor");
    }
    found.emplace(tensor, StoredPlace{*stored, file.shared_file()});
  }
  unlisted_ = held - index->size();
  return {};
}

Status Checkpoint::list_stored(const StoredTensors& found) {
  auto quantized = read_quantized(config_json_, found);
  if (!quantized.ok()) return quantized.error().in(folder_.string());
  config_json_ = std::move(quantized->config_json);
  for (StoredWeight& weight : quantized->weights) {
    const std::string name = weight.info.name;
    weights_.emplace(name, std::move(weight));
  }
  for (const auto& [name, place] : found) {
    if (quantized->used.contains(name)) continue;
    auto info = weight_info(place.tensor);
    if (!info.ok()) {
      others_.emplace(name, info.error().in(place.file->identity().path));
      continue;
    }
    StoredWeight weight;
    weight.stored_as = std::string(weights::name(info->dtype));
    weight.info = std::move(*info);
    weight.pieces.push_back({place.file, place.tensor.offset, place.tensor.bytes});
    weights_.emplace(name, std::move(weight));
  }
  return {};
}

Status Checkpoint::list_tensors() {
  uint64_t total = 0;
  for (const auto& [name, weight] : weights_) {
    if (__builtin_add_overflow(total, weight.info.bytes(), &total) || total >> 63 != 0) {
      return invalid(folder_.string() + ": expected less than 2^63 bytes of tensors");
    }
    tensors_.push_back(weight.info);
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

const StoredWeight* Checkpoint::stored(std::string_view tensor) const {
  const auto entry = weights_.find(tensor);
  return entry == weights_.end() ? nullptr : &entry->second;
}

Result<TensorData> Checkpoint::read(std::string_view tensor) {
  if (const StoredWeight* weight = stored(tensor)) {
    TANDEM_TRY(check_here(*weight));
    return read_weight(*weight);
  }
  if (const auto other = others_.find(tensor); other != others_.end()) return other->second;
  return Error{ErrorKind::kNotFound, folder_.string() + ": no tensor " + printable(tensor)};
}

TensorIdentity Checkpoint::identity(std::string_view tensor) const {
  TensorIdentity identity;
  if (const auto told = contents_.find(tensor); told != contents_.end()) {
    identity.content = told->second;
  }
  const StoredWeight* weight = stored(tensor);
  if (weight == nullptr) return identity;
  ByteWriter writer;
  for (const FilePiece& piece : weight->pieces) {
    const FileIdentity& file = piece.file->identity();
    if (std::max(file.modified_ns, file.changed_ns) > opened_ns_ - kYoungNs) return identity;
    writer.text(file.path);
    writer.write(file.size);
    writer.write(file.modified_ns);
    writer.write(file.changed_ns);
    writer.write(file.inode);
    writer.write(piece.offset);
    writer.write(piece.bytes);
  }
  if (!weight->conversion.empty()) writer.text(weight->conversion);
  identity.place = sha256(writer.bytes());
  return identity;
}

void Checkpoint::tell_content(std::string_view tensor, const Digest& sha256) {
  contents_[std::string(tensor)] = sha256;
}

}  // namespace tandem::weights
