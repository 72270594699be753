#include "weights/manifest_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>

#include "base/bytes.h"
#include "weights/mapped_file.h"
#include "weights/packed_cache.h"

namespace tandem::weights {

namespace {

namespace fs = std::filesystem;

// file = magic key:length+bytes manifest:length+bytes sha256 of all before
constexpr std::string_view kMagic = "TDCACHE2";
constexpr uint64_t kMaxKeyBytes = uint64_t{32} << 20;

// File systems stamp with the kernel's clock tick, at most 10 ms; two writes within one tick leave
// the same time.
constexpr int64_t kYoungNs = 100'000'000;

/// Everything that decides the tensors' bytes: the files, and where each tensor lies in them.
std::vector<std::byte> make_key(const Checkpoint& checkpoint) {
  ByteWriter writer;
  for (const auto& file : checkpoint.files()) {
    const FileIdentity& identity = file->identity();
    writer.text(identity.path);
    writer.write(identity.size);
    writer.write(identity.modified_ns);
    writer.write(identity.changed_ns);
    writer.write(identity.inode);
  }
  Sha256 places;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const StoredWeight* weight = checkpoint.stored(tensor.name);
    ByteWriter entry;
    entry.text(tensor.name);
    entry.text(weight->conversion);
    for (const FilePiece& piece : weight->pieces) {
      entry.text(piece.file->identity().path);
      entry.write(piece.offset);
      entry.write(piece.bytes);
    }
    places.update(entry.bytes());
  }
  const Digest digest = places.digest();
  writer.append(std::as_bytes(std::span(digest)));
  return writer.release();
}

fs::path cache_file(const Checkpoint& checkpoint) {
  const fs::path folder = manifest_cache_folder();
  // Named by the model's folder, so that a model that changes replaces its entry.
  return folder.empty() ? folder : folder / hex(sha256(checkpoint.folder().string()));
}

std::span<const std::byte> blob(ByteReader& reader, uint64_t limit) {
  const auto length = reader.read<uint64_t>();
  return length <= limit ? reader.take(length) : reader.take(UINT64_MAX);
}

bool lists_same_tensors(const Manifest& manifest, const Checkpoint& checkpoint) {
  return std::ranges::equal(
      manifest.tensors, checkpoint.tensors(), [](const ManifestTensor& a, const TensorInfo& b) {
        return a.info.name == b.name && a.info.dtype == b.dtype && a.info.shape == b.shape;
      });
}

bool write_file(const fs::path& path, std::span<const std::byte> bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) return false;
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return ::close(descriptor) == 0 && bytes.empty();
}

}  // namespace

fs::path manifest_cache_folder() {
  const fs::path folder = cache_folder();
  return folder.empty() ? folder : folder / "manifests";
}

std::optional<Manifest> load_manifest(const Checkpoint& checkpoint) {
  const fs::path path = cache_file(checkpoint);
  if (path.empty()) return std::nullopt;
  const auto text = read_text_file(path, kMaxKeyBytes + kMaxManifestBytes + 1024);
  if (!text.ok()) return std::nullopt;
  const std::string& whole = *text;
  const auto bytes = std::as_bytes(std::span(whole));
  if (bytes.size() < kMagic.size() + 32) return std::nullopt;
  const auto content = bytes.first(bytes.size() - 32);
  const Digest digest = sha256(content);
  if (!std::ranges::equal(bytes.last(32), std::as_bytes(std::span(digest)))) return std::nullopt;

  ByteReader reader(content);
  const auto magic = reader.take(kMagic.size());
  const auto key = blob(reader, kMaxKeyBytes);
  const auto serialized = blob(reader, kMaxManifestBytes);
  if (!reader.finished() || !std::ranges::equal(magic, std::as_bytes(std::span(kMagic))) ||
      !std::ranges::equal(key, make_key(checkpoint))) {
    return std::nullopt;
  }
  auto manifest = Manifest::parse(serialized);
  if (!manifest.ok() || !lists_same_tensors(*manifest, checkpoint)) return std::nullopt;
  manifest->config = sha256(checkpoint.config_json());  // in memory anyway: never from the cache
  return std::move(*manifest);
}

void store_manifest(const Checkpoint& checkpoint, const Manifest& manifest, int64_t started_ns) {
  for (const auto& file : checkpoint.files()) {
    const FileIdentity& identity = file->identity();
    if (std::max(identity.modified_ns, identity.changed_ns) > started_ns - kYoungNs) return;
  }
  const fs::path path = cache_file(checkpoint);
  if (path.empty()) return;
  std::error_code code;
  fs::create_directories(path.parent_path(), code);
  if (code) return;

  ByteWriter writer;
  const auto key = make_key(checkpoint);
  const auto serialized = manifest.serialize();
  if (key.size() > kMaxKeyBytes || serialized.size() > kMaxManifestBytes) return;
  writer.append(std::as_bytes(std::span(kMagic)));
  writer.write(uint64_t{key.size()});
  writer.append(key);
  writer.write(uint64_t{serialized.size()});
  writer.append(serialized);
  const Digest digest = sha256(writer.bytes());
  writer.append(std::as_bytes(std::span(digest)));

  static std::atomic<uint64_t> counter{0};
  fs::path temporary = path;
  temporary += '.';
  temporary += std::to_string(::getpid());
  temporary += '-';
  temporary += std::to_string(counter++);
  if (!write_file(temporary, writer.bytes()) || ::rename(temporary.c_str(), path.c_str()) != 0) {
    ::unlink(temporary.c_str());
  }
}

}  // namespace tandem::weights
