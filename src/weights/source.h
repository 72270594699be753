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
///
/// The first three are plain numbers. The others are blocks of consecutive elements of a row
/// (block.h): those that GGUF files hold, and groups of 32 that the readers of other quantized
/// checkpoints put their weights into. Each stands for numbers of binary32.
enum class DType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kQ4_0 = 3,
  kQ4_1 = 4,
  kQ5_0 = 5,
  kQ5_1 = 6,
  kQ8_0 = 7,
  kQ2K = 8,
  kQ3K = 9,
  kQ4K = 10,
  kQ5K = 11,
  kQ6K = 12,
  kIq4Nl = 13,
  kIq4Xs = 14,
  kMxfp4 = 15,
  kInt4Group = 16,
  kInt8Group = 17,
  kE4m3Group = 18,
  kE5m2Group = 19,
};
inline constexpr uint8_t kDTypes = 20;

/// A type's smallest piece.
struct BlockSize {
  uint32_t elements = 1;  ///< consecutive ones of a row: 1, 32 or 256
  uint32_t bytes = 0;
};
constexpr BlockSize block_size(DType dtype) {
  constexpr BlockSize kSizes[kDTypes] = {{1, 4},     {1, 2},     {1, 2},     {32, 18},  {32, 20},
                                         {32, 22},   {32, 24},   {32, 34},   {256, 84}, {256, 110},
                                         {256, 144}, {256, 176}, {256, 210}, {32, 18},  {256, 136},
                                         {32, 17},   {32, 22},   {32, 38},   {32, 36},  {32, 36}};
  return kSizes[static_cast<uint8_t>(dtype)];
}
/// Bytes of `elements` elements, a multiple of the block's.
constexpr uint64_t bytes_of(DType dtype, uint64_t elements) {
  const BlockSize block = block_size(dtype);
  return elements / block.elements * block.bytes;
}
/// Whether `elements` elements of a row end where a block does.
constexpr bool whole_blocks(DType dtype, uint64_t elements) {
  return elements % block_size(dtype).elements == 0;
}
/// "F32", "BF16" as safetensors spells them, "Q4_K" as GGUF does.
std::string_view name(DType dtype);

/// Name, type and shape of one tensor. Shapes are row-major, at most 4 dimensions; the last one is
/// a whole number of the type's blocks.
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
  [[nodiscard]] uint64_t bytes() const { return bytes_of(dtype, elements()); }
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
