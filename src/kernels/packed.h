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

/// A matrix [rows, columns] of integer weights with a scale per row.
///
/// A tile is 16 consecutive rows; tiles follow each other, each a multiple of 64 bytes.
///   k8: steps of 4 columns, 64 bytes each: byte [row][j] = weight(row, 4 step + j) + 128
///   k4: chunks of 8 columns, 64 bytes each: byte [row][j] = quant(row, 8c + j) |
///       quant(row, 8c + 4 + j) << 4; after all chunks, 48 bytes for every 64 columns:
///       [group 0..1][row] scale | (minimum & 3) << 6, then [row] minimum 0 >> 2 | minimum 1 >> 2
///       << 4
///   k6: chunks as in k4 with the low 4 bits; then 64 bytes for every 16 columns with the high 2
///   bits:
///       byte [row][j] = high(j) | high(4 + j) << 2 | high(8 + j) << 4 | high(12 + j) << 6; then
///       32 bytes of scales for every 64 columns: [group 0..1][row]
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
  /// Bytes of weights and scales.
  [[nodiscard]] uint64_t bytes() const { return data.size() + row_scales.size() * sizeof(float); }

  static constexpr uint64_t tile_bytes(WeightFormat format, uint32_t columns) {
    const uint64_t padded = padded_columns(columns);
    switch (format) {
      case WeightFormat::k8:
        return padded * kTileRows;
      case WeightFormat::k4:
        return scales_offset(format, columns) + (padded / 64 * 48 + 63) / 64 * 64;
      case WeightFormat::k6:
        return scales_offset(format, columns) + (padded / 64 * 32 + 63) / 64 * 64;
    }
    return 0;
  }
  /// Where a tile's scales begin (k4, k6), and its high bits (k6).
  static constexpr uint64_t scales_offset(WeightFormat format, uint32_t columns) {
    const uint64_t padded = padded_columns(columns);
    return format == WeightFormat::k4 ? padded * 8 : padded * 12;
  }
  static constexpr uint64_t high_offset(uint32_t columns) {
    return uint64_t{padded_columns(columns)} * 8;
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
