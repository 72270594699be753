// What a model is, by content: the SHA-256 of its config.json and of every tensor's bytes. Two
// folders with equal manifests hold the same model, however it is sharded or named.
//
// Canonical form, little-endian; model_hash is the SHA-256 of exactly these bytes:
//
//   manifest = "TDMANIF1" config:32 count:u32 tensor*count
//   tensor   = length:u32 name dtype:u8 dims:u8 extent:u64*dims sha256:32
//
// with 1 to 100,000 tensors in strictly rising order of their names' bytes, names of 1 to 512
// bytes (see check_tensor_name), dtype as in DType, 0 to 4 extents, none of them 0, and sizes in
// bytes whose sum over all tensors is below 2^63.
// There is one form for one content, so parse() and serialize() are inverse to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "weights/checkpoint.h"
#include "weights/source.h"

namespace tandem::weights {

/// What a manifest in its canonical form is called beside a model's files.
inline constexpr const char* kManifestFile = "tandem.manifest";
/// Longest serialized manifest that is read, in bytes.
inline constexpr uint64_t kMaxManifestBytes = uint64_t{16} << 20;

struct ManifestTensor {
  TensorInfo info;
  Digest sha256{};  ///< of the tensor's bytes as they are stored
};

struct Manifest {
  Digest config{};                      ///< SHA-256 of config.json's text
  std::vector<ManifestTensor> tensors;  ///< ordered by name

  /// The tensor of that name, or null.
  [[nodiscard]] const ManifestTensor* find(std::string_view tensor) const;
  /// The canonical form above.
  [[nodiscard]] std::vector<std::byte> serialize() const;
  /// Reads the canonical form, for instance from a peer. Only the form is checked: whoever needs
  /// to know which model this is computes model_hash() from it. Error: kInvalid.
  static Result<Manifest> parse(std::span<const std::byte> bytes);
};

/// The model's identity: SHA-256 of the canonical form.
Digest model_hash(const Manifest& manifest);

/// A source that knows its tensors by a manifest: names, types, shapes and hashes are the
/// manifest's, bytes come from elsewhere.
class ManifestSource : public TensorSource {
 public:
  /// `manifest` must outlive this.
  explicit ManifestSource(const Manifest& manifest) : manifest_(manifest) {}

  [[nodiscard]] const TensorInfo* find(std::string_view tensor) const override;
  [[nodiscard]] TensorIdentity identity(std::string_view tensor) const override;

 protected:
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }

 private:
  const Manifest& manifest_;
};

/// Checks that a tensor which came from anywhere is the one that the manifest names.
/// Errors: kNotFound (no such tensor), kInvalid (type, shape or content differ).
Status verify(const Manifest& manifest, const TensorData& tensor);

/// Tells a checkpoint the hashes of its tensors; those of other types or shapes are left out.
void tell_contents(const Manifest& manifest, Checkpoint& checkpoint);

/// Called with the bytes hashed so far and in all, by one thread at a time. Returns false to stop,
/// which makes the call fail with kCancelled.
using HashProgress = std::function<bool(uint64_t done, uint64_t total)>;

/// Hashes a checkpoint with `threads` threads (1 to 256), past its mapping, so that neither
/// memory nor an I/O error gets in the way. `progress` may be empty.
///
/// The result is kept in the folder manifests of cache_folder() (packed_cache.h) with the identity
/// (path, size, times, inode) of each file, and taken from there as long as all of it is the same.
/// A cache that can't be read, written or trusted costs time, never an error. Errors: kInvalid (a
/// file changed meanwhile), kIo, kCancelled, kUnsupported (more than kMaxTensors or
/// kMaxManifestBytes).
Result<Manifest> make_manifest(const Checkpoint& checkpoint, uint32_t threads,
                               const HashProgress& progress);

/// What make_manifest() would take from its cache, or nothing; never hashes.
std::optional<Manifest> known_manifest(const Checkpoint& checkpoint);

/// A folder of models that a device holds already (--models).
class ModelLibrary {
 public:
  /// A folder, or a GGUF file, which is then the only model.
  /// Errors: kNotFound, kInvalid (neither), kIo.
  static Result<ModelLibrary> open(const std::filesystem::path& folder);

  /// The checkpoint whose content is exactly `wanted`. Looks at folders with a config.json and at
  /// GGUF files at most two levels down (the library's folder itself counts as level 0), in order
  /// of their names; symbolic links to folders are followed on the first level only. A model is
  /// hashed only if its config.json and its list of tensors are the wanted ones. Nothing of
  /// `wanted` is ever part of a path. Errors: kNotFound (says how many folders were looked at, and
  /// of one that could not be read why), kCancelled.
  [[nodiscard]] Result<std::unique_ptr<Checkpoint>> find(const Manifest& wanted, uint32_t threads,
                                                         const HashProgress& progress) const;
  /// The folders and GGUF files that find() looks at.
  [[nodiscard]] std::vector<std::filesystem::path> folders() const;

 private:
  ModelLibrary() = default;
  std::filesystem::path folder_;
};

}  // namespace tandem::weights
