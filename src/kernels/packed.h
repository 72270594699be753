// Integer weights in the layout that every CPU kernel streams: tiles of 16 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned.h"

namespace tandem::kernels {

enum class WeightFormat : uint8_t { k8, k4 };

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

/// A matrix [rows, columns] of integer weights with a scale per row.
///
/// A tile is 16 consecutive rows; tiles follow each other. Within a tile, columns go in steps:
///   k8: steps of 4 columns, 64 bytes each: byte [row][j] = weight(row, 4 step + j) + 128
///   k4: steps of 64 columns (two groups), 576 bytes each: 8 chunks of 64 bytes, chunk c holding
///       columns 8c to 8c + 7: byte [row][j] = quant(row, 8c + j) | quant(row, 8c + 4 + j) << 4;
///       then scales [group 0..1][row] and minimums [group 0..1][row], 8 bits each.
struct PackedMatrix {
  WeightFormat format = WeightFormat::k8;
  uint32_t rows = 0;
  uint32_t columns = 0;
  AlignedArray<uint8_t> data;     ///< tile_count(rows) * tile_bytes()
  std::vector<float> row_scales;  ///< [tile_count(rows) * 16]

  [[nodiscard]] uint64_t tile_bytes() const { return tile_bytes(format, columns); }
  [[nodiscard]] const uint8_t* tile(uint32_t index) const {
    return data.data() + index * tile_bytes();
  }
  /// Bytes of weights and scales.
  [[nodiscard]] uint64_t bytes() const { return data.size() + row_scales.size() * sizeof(float); }

  static constexpr uint64_t tile_bytes(WeightFormat format, uint32_t columns) {
    const uint64_t padded = padded_columns(columns);
    return format == WeightFormat::k8 ? padded * kTileRows : padded / 64 * 576;
  }
  /// What bytes() will be for a matrix of this shape.
  static constexpr uint64_t bytes_for(WeightFormat format, uint64_t rows, uint32_t columns) {
    const uint64_t tiles = (rows + kTileRows - 1) / kTileRows;
    return tiles * (tile_bytes(format, columns) + kTileRows * sizeof(float));
  }
};

/// An empty matrix of zeros; `data` is empty if memory is exhausted.
PackedMatrix make_packed(WeightFormat format, uint32_t rows, uint32_t columns);

/// Stores one quantized row. `weights` holds `columns` values in [-127, 127]. Rows of different
/// tiles may be stored concurrently.
void store_row8(PackedMatrix& matrix, uint32_t row, std::span<const int8_t> weights,
                float row_scale);
/// `quants` holds `columns` values in [0, 15]; `scales` and `minimums` one a group of 32, the last
/// group padded: quants past `columns` do not exist, their weight must come out as anything, since
/// activations there are zero.
void store_row4(PackedMatrix& matrix, uint32_t row, std::span<const uint8_t> quants,
                std::span<const uint8_t> scales, std::span<const uint8_t> minimums,
                float row_scale);

/// Reads one row back as integers (k8: the weights; k4: scale * quant - 8 * minimum), `columns`
/// long.
void load_row(const PackedMatrix& matrix, uint32_t row, std::span<int32_t> weights);

}  // namespace tandem::kernels
