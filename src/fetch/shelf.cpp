#include "fetch/shelf.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "weights/journal.h"
#include "weights/mapped_file.h"
#include "weights/printable.h"

namespace tandem::fetch {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlign = 64;
constexpr uint64_t kMaxBytes = uint64_t{1} << 44;  // what file systems take
constexpr const char* kByHash = "by-hash";
constexpr const char* kMark = "-tensors";

/// A file that is open, and locked if it is a journal.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

Status read_all(int fd, uint64_t offset, std::span<std::byte> out, const fs::path& path) {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return Error{ErrorKind::kIo, path.string() + ": can't read: " +
                                       (count == 0 ? "it is shorter" : std::strerror(errno))};
    }
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
  return {};
}

bool marked(const fs::path& folder, const std::string& mark) {
  std::error_code code;
  return mark.empty() || fs::exists(folder / mark, code);
}

/// "HASH-tensors" or "HASH-tensors-SLOT".
std::optional<Digest> hash_of(const std::string& name) {
  Digest digest{};
  constexpr size_t kDigits = 64;
  if (name.size() <= kDigits || name.compare(kDigits, std::strlen(kMark), kMark) != 0 ||
      !parse_hex(std::string_view(name).substr(0, kDigits), digest)) {
    return std::nullopt;
  }
  return digest;
}

}  // namespace

Result<Spots> stage_spots(const weights::Manifest& manifest, uint64_t& size) {
  Spots spots;
  size = 0;
  for (const weights::ManifestTensor& tensor : manifest.tensors) {
    size = (size + kAlign - 1) / kAlign * kAlign;
    const uint64_t bytes = tensor.info.bytes();
    if (bytes > kMaxBytes || size > kMaxBytes - bytes) {
      return unsupported("the model's tensors have more than " + std::to_string(kMaxBytes) +
                         " bytes");
    }
    spots.emplace(tensor.info.name, Spot{kStageTensors, size, bytes});
    size += bytes;
  }
  return spots;
}

fs::path stage_folder(const Digest& model_hash, const std::string& slot) {
  return fs::path(kByHash) / (hex(model_hash) + kMark + (slot.empty() ? "" : "-" + slot));
}

void Shelf::put(const Digest& model_hash, const fs::path& folder, Spots spots) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[folder];
  entry = {};
  entry.model_hash = model_hash;
  entry.folder = folder;
  entry.spots = std::move(spots);
}

void Shelf::add(const Digest& model_hash, const fs::path& folder) {
  if (entries_.contains(folder)) return;
  const auto text = weights::read_text_file(folder / kStageManifest, weights::kMaxManifestBytes);
  // Not whole yet, or not what it is called by: what is in it is nobody's.
  if (!text.ok() || sha256(*text) != model_hash) return;
  auto manifest = weights::Manifest::parse(std::as_bytes(std::span(*text)));
  const auto config = weights::read_text_file(folder / kStageConfig, weights::kMaxConfigBytes);
  if (!manifest.ok() || !config.ok() || sha256(*config) != manifest->config) return;
  uint64_t size = 0;
  auto spots = stage_spots(*manifest, size);
  if (!spots.ok()) return;
  Entry entry;
  entry.model_hash = model_hash;
  entry.folder = folder;
  entry.manifest = std::make_shared<const weights::Manifest>(std::move(*manifest));
  entry.spots = std::move(*spots);
  entry.config_json = *config;
  entries_.emplace(folder, std::move(entry));
}

void Shelf::look(const std::optional<Digest>& model_hash) {
  std::error_code code;
  for (const auto& one : fs::directory_iterator(store_.root() / kByHash, code)) {
    std::error_code ignored;
    if (!fs::is_directory(one.symlink_status(ignored))) continue;
    const auto hash = hash_of(one.path().filename().string());
    if (hash && (!model_hash || *hash == *model_hash)) add(*hash, one.path());
  }
}

bool Shelf::refresh(Entry& entry) {
  const fs::path path = entry.folder / weights::kJournalName;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  // Only ever appended to, as long as it is the same file.
  const std::pair now(static_cast<uint64_t>(status.st_ino), static_cast<uint64_t>(status.st_size));
  if (entry.journal != nullptr && now == entry.read) return true;
  const auto text = weights::read_text_file(path, weights::kMaxJournalBytes);
  if (!text.ok()) return false;
  uint64_t good = 0;
  auto journal = weights::Journal::parse(*text, good);
  if (!journal.ok()) return false;
  entry.journal = std::make_shared<const weights::Journal>(std::move(*journal));
  entry.read = now;
  return true;
}

Status Shelf::read(const Digest& model_hash, const std::string& tensor, uint64_t offset,
                   std::span<std::byte> out, const std::string& mark) {
  const Error none{ErrorKind::kNotFound, "tensor " + weights::printable(tensor) + " is not here"};
  std::vector<std::pair<fs::path, Spot>> places;
  {
    const std::lock_guard lock(mutex_);
    look(model_hash);
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const bool wanted = entry->second.model_hash == model_hash && marked(entry->first, mark);
      if (wanted && !refresh(entry->second)) {
        entry = entries_.erase(entry);
        continue;
      }
      const auto spot = wanted ? entry->second.spots.find(tensor) : entry->second.spots.end();
      if (spot != entry->second.spots.end()) {
        const auto* file = entry->second.journal->find(spot->second.file);
        if (file != nullptr && file->has(spot->second.offset, spot->second.length)) {
          places.emplace_back(entry->first, spot->second);
        }
      }
      ++entry;
    }
  }
  Status status = none;
  for (const auto& [folder, spot] : places) {
    if (offset > spot.length || out.size() > spot.length - offset) {
      return invalid("bytes " + std::to_string(offset) + " to " +
                     std::to_string(offset + out.size()) + " of tensor " +
                     weights::printable(tensor) + ", which has " + std::to_string(spot.length));
    }
    const Descriptor journal(
        ::open((folder / weights::kJournalName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    struct stat state {};
    if (journal.get() < 0 || ::flock(journal.get(), LOCK_SH | LOCK_NB) != 0 ||
        ::fstat(journal.get(), &state) != 0 || state.st_nlink == 0) {
      continue;  // it is being removed
    }
    const fs::path path = folder / spot.file;
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.get() < 0) continue;
    status = read_all(file.get(), spot.offset + offset, out, path);
    if (!status.ok()) continue;
    // In use: the order in which models are removed.
    (void)::futimens(journal.get(), nullptr);
    return {};
  }
  return status;
}

std::vector<Shelved> Shelf::list(const std::string& mark) {
  std::map<Digest, Shelved> models;
  const std::lock_guard lock(mutex_);
  look(std::nullopt);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (!refresh(entry->second)) {
      entry = entries_.erase(entry);
      continue;
    }
    const Entry& one = entry->second;
    ++entry;
    if (one.manifest == nullptr || !marked(one.folder, mark)) continue;
    Shelved& model = models[one.model_hash];
    model.model_hash = one.model_hash;
    model.config_json = one.config_json;
    model.manifest = one.manifest;
    for (const auto& [name, spot] : one.spots) {
      const auto* file = one.journal->find(spot.file);
      if (file != nullptr && file->has(spot.offset, spot.length)) model.tensors.insert(name);
    }
  }
  std::vector<Shelved> result;
  for (auto& [hash, model] : models) result.push_back(std::move(model));
  return result;
}

}  // namespace tandem::fetch
