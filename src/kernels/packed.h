// Integer weights in the layout that every CPU kernel streams: tiles of 16 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/block.h"
#include "base/result.h"

namespace tandem::kernels {

/// 8 bits with a scale a row; 4 and 6 bits in groups of arithmetic::kGroup with integer
/// multipliers.
enum class WeightFormat : uint8_t { k8, k4, k6 };

/// Rows of one tile, and the multiple that columns are padded to.
inline constexpr uint32_t kTileRows = 16;
inline constexpr uint32_t kColumnPad = 64;

/// Columns as stored: the next multiple of kColumnPad. Padding weights are zero.
constexpr uint32_t padded_columns(uint32_t columns) {
  return (columns + kColumnPad - 1) / kColumnPad * kColumnPad;
}
constexpr uint32_t tile_count(uint32_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}

/// Weights in a mapped file of which nothing has been read yet. Thread-safe.
class OnDemand {
 public:
  OnDemand() = default;
  OnDemand(const OnDemand&) = delete;
  OnDemand& operator=(const OnDemand&) = delete;
  virtual ~OnDemand() = default;

  /// Asks for the bytes to be read ahead, and does not wait.
  virtual void want() = 0;
  /// Waits until they are in memory. The first time they are checked; the error says what is wrong.
  [[nodiscard]] virtual Status fetch() = 0;
  /// Gives their memory back: it is read again when it is touched.
  virtual void drop() = 0;
};

/// Where 64 columns of a k4 or k6 tile lie: bytes from its begin.
struct PackedStep {
  size_t scales;
  size_t low;   ///< of chunk 0
  size_t high;  ///< of chunks 0 and 1; k6 only

  /// From `low` to that of one of the step's eight chunks.
  static constexpr size_t low_of(WeightFormat format, size_t chunk) {
    return format == WeightFormat::k4 ? chunk * 64 : chunk / 2 * 192 + chunk % 2 * 64;
  }
  /// From `high` to that of the chunk and its neighbour.
  static constexpr size_t high_of(size_t chunk) { return chunk / 2 * 192; }

  /// Step `step` of `steps`, which a tile of padded_columns() / 64 has.
  static constexpr PackedStep at(WeightFormat format, uint32_t steps, size_t step) {
    if (format == WeightFormat::k4) {
      const size_t first = step / 4 * 4;
      const size_t begin = first * (48 + 512);
      const size_t in_block = steps - first;
      const size_t scales = in_block < 3 ? in_block * 64 : 192;
      return {begin + step % 4 * 48, begin + scales + step % 4 * 512, 0};
    }
    const size_t begin = step / 2 * (64 + 2 * 768);
    const size_t high = begin + 64 + step % 2 * 768;
    return {begin + step % 2 * 32, high + 64, high};
  }
};

/// A matrix [rows, columns] of integer weights with a scale per row.
///
/// A tile is 16 consecutive rows; tiles follow each other, each a multiple of 64 bytes.
///   k8: for every 4 columns 64 bytes: byte [row][j] = weight(row, 4 k + j) + 128
///   k4 and k6: steps of 64 columns, in blocks of four (k4) or two (k6), of which the last may have
///       fewer; PackedStep says where a step's parts lie. A block begins with its steps'
///       multipliers and a tile is read from its first byte to its last: processors fetch such a
///       stream ahead by themselves, and lose it where a part of it is left out for later.
///     multipliers: k4, 48 bytes a step: [group 0..1][row] scale | (minimum & 3) << 6, then [row]
///       minimum 0 >> 2 | minimum 1 >> 2 << 4; k6, 32 bytes: [group 0..1][row] scale
///     low: chunks of 8 columns, 64 bytes each: byte [row][j] = quant(row, 8 c + j) & 15 |
///       (quant(row, 8 c + 4 + j) & 15) << 4
///     high (k6): 64 bytes before every two chunks: byte [row][j] = high(j) | high(4 + j) << 2 |
///       high(8 + j) << 4 | high(12 + j) << 6, high a quant's upper 2 bits
struct PackedMatrix {
  WeightFormat format = WeightFormat::k8;
  uint32_t rows = 0;
  uint32_t columns = 0;
  Block<uint8_t> data;      ///< tile_count(rows) * tile_bytes(); owned, or mapped from a file
  Block<float> row_scales;  ///< [tile_count(rows) * 16]
  /// Both lie in a mapped file: a backend may move them into memory of its own.
  bool mapped = false;
  /// Of a mapped matrix that is not to be read before it is needed; several may share one.
  std::shared_ptr<OnDemand> on_demand = nullptr;

  [[nodiscard]] uint64_t tile_bytes() const { return tile_bytes(format, columns); }
  [[nodiscard]] const uint8_t* tile(uint32_t index) const {
    return data.data() + index * tile_bytes();
  }
  /// Where step `index` lies in a tile (k4, k6).
  [[nodiscard]] PackedStep step(size_t index) const {
    return PackedStep::at(format, padded_columns(columns) / kColumnPad, index);
  }
  /// Bytes of weights and scales.
  [[nodiscard]] uint64_t bytes() const { return data.size() + row_scales.size() * sizeof(float); }

  static constexpr uint64_t tile_bytes(WeightFormat format, uint32_t columns) {
    const uint64_t padded = padded_columns(columns);
    switch (format) {
      case WeightFormat::k8:
        return padded * kTileRows;
      case WeightFormat::k4:
        return padded * 8 + (padded / 64 * 48 + 63) / 64 * 64;
      case WeightFormat::k6:
        return padded * 12 + (padded / 64 * 32 + 63) / 64 * 64;
    }
    return 0;
  }
  /// The same weights again, to be read only.
  [[nodiscard]] PackedMatrix share() const {
    return {format, rows, columns, data.share(), row_scales.share(), mapped, on_demand};
  }
  /// What bytes() will be for a matrix of this shape.
  static constexpr uint64_t bytes_for(WeightFormat format, uint64_t rows, uint32_t columns) {
    const uint64_t tiles = (rows + kTileRows - 1) / kTileRows;
    return tiles * (tile_bytes(format, columns) + kTileRows * sizeof(float));
  }
};

/// An empty matrix of zeros; `data` is empty if memory is exhausted.
PackedMatrix make_packed(WeightFormat format, uint32_t rows, uint32_t columns);
/// The same for a caller that writes every tile as a whole: no memory is touched yet, and until it
/// is written a weight of 8 bits is not zero.
PackedMatrix make_unwritten(WeightFormat format, uint32_t rows, uint32_t columns);

/// Stores one quantized row. `weights` holds `columns` values in [-127, 127]. Rows of different
/// tiles may be stored concurrently.
void store_row8(PackedMatrix& matrix, uint32_t row, std::span<const int8_t> weights,
                float row_scale);
/// `quants` holds `columns` values in [0, 15]; `scales` and `minimums` one a group, in [0, 63].
void store_row4(PackedMatrix& matrix, uint32_t row, std::span<const uint8_t> quants,
                std::span<const uint8_t> scales, std::span<const uint8_t> minimums,
                float row_scale);
/// `quants` holds `columns` values in [0, 63]; `scales` one a group, in [0, 127].
void store_row6(PackedMatrix& matrix, uint32_t row, std::span<const uint8_t> quants,
                std::span<const uint8_t> scales, float row_scale);

/// Reads one row back as integer weights (k4: scale * quant - 8 * minimum, k6: scale * (quant -
/// 32)), `columns` long.
void load_row(const PackedMatrix& matrix, uint32_t row, std::span<int32_t> weights);

}  // namespace tandem::kernels
