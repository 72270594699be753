// A file of quantized weights in the kernels' layout, to be mapped and used as it is
// (docs/cache.md):
//
//   file   = header zeros data
//   header = "TDPACK01" contract:u32 layout:u32 key:32 content:32 count:u32
//            (format:u8 rows:u32 columns:u32)*count sha256:32
//   data   = (weights row_scales zeros)*count
//
// little-endian. `sha256` is of the header before it, `content` the checksum() of everything from
// the data on. Data begins at the first multiple of 4,096 after the header, and so does each
// matrix; row scales follow the weights at once. Nothing else is stored: sizes and places follow
// from formats and shapes, so they can't contradict each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "kernels/packed.h"

namespace tandem::weights {

/// Raised when kernels::PackedMatrix or this format changes.
inline constexpr uint32_t kPackedLayout = 2;

struct PackedShape {
  kernels::WeightFormat format = kernels::WeightFormat::k8;
  uint32_t rows = 0;     ///< 1 to kMaxPackedRows
  uint32_t columns = 0;  ///< 1 to arithmetic::kMaxRow

  bool operator==(const PackedShape&) const = default;
};
inline constexpr uint32_t kMaxPackedRows = uint32_t{1} << 28;
inline constexpr uint32_t kMaxPackedMatrices = 64;

struct PackedHeader {
  Digest key{};      ///< what the weights were made from, and how
  Digest content{};  ///< checksum of the data
  std::vector<PackedShape> matrices;

  /// Bytes of weights and row scales of a matrix in the file.
  struct Place {
    uint64_t weights = 0;  ///< offset from the start of the file
    uint64_t weight_bytes = 0;
    uint64_t scales = 0;
    uint64_t scale_bytes = 0;
  };
  [[nodiscard]] std::vector<Place> places() const;
  [[nodiscard]] uint64_t data_offset() const;
  [[nodiscard]] uint64_t file_bytes() const;

  /// The header's bytes, without the zeros behind it.
  [[nodiscard]] std::vector<std::byte> serialize() const;
  /// Reads a header from the first bytes of a file of `file_bytes` bytes; `bytes` are those there
  /// are, or more than any header has. The data is not looked at. Errors: kInvalid (says what is
  /// wrong), kUnsupported (another version).
  static Result<PackedHeader> parse(std::span<const std::byte> bytes, uint64_t file_bytes);
};

/// The longest header that parse() accepts, in bytes.
inline constexpr uint64_t kMaxPackedHeader = 8 + 4 + 4 + 32 + 32 + 4 + 9 * kMaxPackedMatrices + 32;

}  // namespace tandem::weights
