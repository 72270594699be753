#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "weights/manifest.h"
#include "weights/manifest_cache.h"
#include "weights/mapped_file.h"
#include "weights/printable.h"

namespace tandem::weights {

namespace {

// Large enough that a read costs little beside hashing it, small enough for the second-level cache.
constexpr uint64_t kChunk = uint64_t{512} << 10;

/// The tensors of one checkpoint, handed out to threads.
class Hashing {
 public:
  Hashing(const Checkpoint& checkpoint, const HashProgress& progress, Manifest& manifest)
      : checkpoint_(checkpoint),
        progress_(progress),
        manifest_(manifest),
        total_(checkpoint.bytes()),
        order_(manifest.tensors.size()) {
    // Largest first: a long one at the end would leave the other threads idle.
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return manifest.tensors[a].info.bytes() > manifest.tensors[b].info.bytes();
    });
  }

  /// Hashes tensors until none is left or something failed. Any number of threads may run this.
  void run() {
    std::vector<std::byte> buffer(kChunk);
    for (size_t next = next_++; next < order_.size() && !stop_; next = next_++) {
      ManifestTensor& tensor = manifest_.tensors[order_[next]];
      if (const Status status = hash(tensor, buffer); !status.ok()) fail(status.error());
    }
  }

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  Status hash(ManifestTensor& tensor, std::span<std::byte> buffer) {
    const StoredWeight& weight = *checkpoint_.stored(tensor.info.name);
    TANDEM_TRY(checkpoint_.check_here(weight));
    if (weight.convert) return hash_converted(weight, tensor);
    const FilePiece& place = weight.pieces.front();
    Sha256 hash;
    for (uint64_t done = 0; done < place.bytes && !stop_; done += buffer.size()) {
      const auto part = buffer.first(std::min<uint64_t>(buffer.size(), place.bytes - done));
      if (const Status status = place.file->read_at(place.offset + done, part); !status.ok()) {
        return Error{status.error().kind,
                     status.error().message + " (tensor " + printable(tensor.info.name) + ")"};
      }
      hash.update(part);
      TANDEM_TRY(report(part.size()));
    }
    tensor.sha256 = hash.digest();
    return {};
  }

  /// The bytes that others will be given, not those of the file.
  Status hash_converted(const StoredWeight& weight, ManifestTensor& tensor) {
    TANDEM_ASSIGN(const TensorData data, read_weight(weight));
    tensor.sha256 = sha256(data.bytes);
    return report(data.bytes.size());
  }

  Status report(uint64_t bytes) {
    if (!progress_) return {};
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (progress_(done_, total_)) return {};
    return Error{ErrorKind::kCancelled, checkpoint_.folder().string() + ": hashing was cancelled"};
  }

  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (!error_) error_ = error;
  }

  const Checkpoint& checkpoint_;
  const HashProgress& progress_;
  Manifest& manifest_;  ///< each entry is written by the one thread that took it
  const uint64_t total_;
  std::vector<size_t> order_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  ///< guards done_ and error_, and calls of progress_
  uint64_t done_ = 0;
  std::optional<Error> error_;
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// What a pulled model says of the tensors that are not here. It is believed, as a folder's own
/// files are: where it matters, each tensor is compared with it when it comes.
std::optional<Manifest> manifest_beside(const Checkpoint& checkpoint) {
  if (!checkpoint.partial()) return std::nullopt;
  const PulledFile* file = checkpoint.journal()->find(kManifestFile);
  if (file == nullptr || !file->complete()) return std::nullopt;
  const auto text = read_text_file(checkpoint.folder() / kManifestFile, kMaxManifestBytes);
  if (!text.ok()) return std::nullopt;
  auto manifest = Manifest::parse(std::as_bytes(std::span(*text)));
  if (!manifest.ok() || manifest->config != sha256(checkpoint.config_json())) return std::nullopt;
  const bool same = std::ranges::equal(
      manifest->tensors, checkpoint.tensors(), [](const ManifestTensor& a, const TensorInfo& b) {
        return a.info.name == b.name && a.info.dtype == b.dtype && a.info.shape == b.shape;
      });
  if (!same) return std::nullopt;
  return std::move(*manifest);
}

}  // namespace

std::optional<Manifest> known_manifest(const Checkpoint& checkpoint) {
  if (auto beside = manifest_beside(checkpoint)) return beside;
  return load_manifest(checkpoint);
}

void tell_contents(const Manifest& manifest, Checkpoint& checkpoint) {
  for (const ManifestTensor& tensor : manifest.tensors) {
    const TensorInfo* own = checkpoint.find(tensor.info.name);
    if (own != nullptr && own->dtype == tensor.info.dtype && own->shape == tensor.info.shape) {
      checkpoint.tell_content(tensor.info.name, tensor.sha256);
    }
  }
}

Result<Manifest> make_manifest(const Checkpoint& checkpoint, uint32_t threads,
                               const HashProgress& progress) {
  if (auto beside = manifest_beside(checkpoint)) return std::move(*beside);
  const int64_t started_ns = now_ns();
  if (auto kept = load_manifest(checkpoint)) {
    if (progress && !progress(checkpoint.bytes(), checkpoint.bytes())) {
      return Error{ErrorKind::kCancelled, checkpoint.folder().string() + ": hashing was cancelled"};
    }
    return std::move(*kept);
  }
  Manifest manifest;
  manifest.config = sha256(checkpoint.config_json());
  for (const TensorInfo& tensor : checkpoint.tensors()) manifest.tensors.push_back({tensor, {}});
  if (manifest.tensors.size() > kMaxTensors || manifest.serialize().size() > kMaxManifestBytes) {
    return unsupported(checkpoint.folder().string() + ": expected at most " +
                       std::to_string(kMaxTensors) + " tensors and a manifest of at most " +
                       std::to_string(kMaxManifestBytes) + " bytes, found more");
  }
  Hashing hashing(checkpoint, progress, manifest);
  std::vector<std::thread> helpers;
  const uint32_t wanted = std::clamp<uint32_t>(threads, 1, 256);
  try {
    while (helpers.size() + 1 < wanted) helpers.emplace_back([&] { hashing.run(); });
  } catch (const std::system_error&) {
    // Fewer threads than asked for: the work is the same, it takes longer.
  }
  hashing.run();
  for (std::thread& helper : helpers) helper.join();
  if (hashing.error()) return *hashing.error();
  for (const auto& file : checkpoint.files()) TANDEM_TRY(file->check_unchanged());
  store_manifest(checkpoint, manifest, started_ns);
  return manifest;
}

}  // namespace tandem::weights
