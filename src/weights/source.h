// Where a tensor's bytes come from: a file on this machine, or the host at the other end of a
// connection. Loading a stage asks a source for exactly the tensors of its own layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace tandem::weights {

/// Element types of the checkpoints that Tandem reads. Values are part of the wire format.
enum class DType : uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2 };

/// Bytes of one element.
constexpr uint64_t size_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}
/// "F32", "F16", "BF16", as safetensors spells them.
std::string_view name(DType dtype);

/// Name, type and shape of one tensor. Shapes are row-major, at most 4 dimensions.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;

  /// Number of elements. The readers have checked that it and `bytes()` fit 63 bits.
  [[nodiscard]] uint64_t elements() const {
    uint64_t count = 1;
    for (const uint64_t extent : shape) count *= extent;
    return count;
  }
  [[nodiscard]] uint64_t bytes() const { return elements() * size_of(dtype); }
};

/// A tensor with its little-endian bytes. `owner` keeps the bytes alive (a mapping or a buffer);
/// dropping the TensorData may unmap or free them.
struct TensorData {
  TensorInfo info;
  std::span<const std::byte> bytes;  ///< exactly info.bytes() long
  std::shared_ptr<const void> owner;
  /// Tells the source that bytes [offset, offset + length) won't be read again soon (they may be:
  /// it is only slower), so that a large tensor need not be in memory as a whole. A range that
  /// passes the end is cut. May be empty.
  std::function<void(uint64_t offset, uint64_t length)> release = nullptr;
};

/// Two digests, each of which stands for one content as far as it is there.
struct TensorIdentity {
  std::optional<Digest> content;  ///< SHA-256 of the bytes
  std::optional<Digest> place;    ///< of the file's identity and the place within it
};

/// Gives tensors by name. Implementations must allow concurrent calls.
class TensorSource {
 public:
  TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;
  virtual ~TensorSource() = default;

  /// Type and shape of a tensor, or null if there is none of that name.
  [[nodiscard]] virtual const TensorInfo* find(std::string_view tensor) const = 0;
  /// What the tensor's bytes are known by, without reading them.
  [[nodiscard]] virtual TensorIdentity identity(std::string_view /*tensor*/) const { return {}; }
  /// The tensor's bytes. Errors: kNotFound, kIo, kPeer, kInvalid (a hash that does not match).
  [[nodiscard]] virtual Result<TensorData> read(std::string_view tensor) = 0;
};

}  // namespace tandem::weights
