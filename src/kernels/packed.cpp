#include "kernels/packed.h"

#include "arithmetic/format.h"

namespace tandem::kernels {
namespace {

constexpr uint32_t kStep4 = 576;
constexpr uint32_t kScales4 = 512;
constexpr uint32_t kMinimums4 = 544;

}  // namespace

PackedMatrix make_packed(WeightFormat format, uint32_t rows, uint32_t columns) {
  PackedMatrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.data = AlignedArray<uint8_t>(tile_count(rows) * matrix.tile_bytes());
  matrix.row_scales.assign(size_t{tile_count(rows)} * kTileRows, 0.0F);
  if (format == WeightFormat::k8) {
    for (size_t i = 0; i < matrix.data.size(); ++i) matrix.data[i] = 128;
  }
  return matrix;
}

void store_row8(PackedMatrix& matrix, uint32_t row, std::span<const int8_t> weights,
                float row_scale) {
  uint8_t* tile = matrix.data.data() + row / kTileRows * matrix.tile_bytes();
  const uint32_t lane = row % kTileRows;
  for (size_t k = 0; k < weights.size(); ++k) {
    tile[k / 4 * 64 + lane * 4 + k % 4] = static_cast<uint8_t>(weights[k] + 128);
  }
  matrix.row_scales[row] = row_scale;
}

void store_row4(PackedMatrix& matrix, uint32_t row, std::span<const uint8_t> quants,
                std::span<const uint8_t> scales, std::span<const uint8_t> minimums,
                float row_scale) {
  uint8_t* tile = matrix.data.data() + row / kTileRows * matrix.tile_bytes();
  const uint32_t lane = row % kTileRows;
  for (size_t k = 0; k < quants.size(); ++k) {
    uint8_t* chunk = tile + k / 64 * kStep4 + k % 64 / 8 * 64;
    uint8_t& byte = chunk[lane * 4 + k % 4];
    byte = static_cast<uint8_t>(k % 8 < 4 ? (byte & 0xf0) | quants[k]
                                          : (byte & 0x0f) | quants[k] << 4);
  }
  for (size_t group = 0; group < scales.size(); ++group) {
    uint8_t* step = tile + group / 2 * kStep4;
    step[kScales4 + group % 2 * kTileRows + lane] = scales[group];
    step[kMinimums4 + group % 2 * kTileRows + lane] = minimums[group];
  }
  matrix.row_scales[row] = row_scale;
}

void load_row(const PackedMatrix& matrix, uint32_t row, std::span<int32_t> weights) {
  const uint8_t* tile = matrix.tile(row / kTileRows);
  const uint32_t lane = row % kTileRows;
  if (matrix.format == WeightFormat::k8) {
    for (size_t k = 0; k < weights.size(); ++k) {
      weights[k] = tile[k / 4 * 64 + lane * 4 + k % 4] - 128;
    }
    return;
  }
  for (size_t k = 0; k < weights.size(); ++k) {
    const uint8_t* step = tile + k / 64 * kStep4;
    const uint8_t byte = step[k % 64 / 8 * 64 + lane * 4 + k % 4];
    const int32_t quant = k % 8 < 4 ? byte & 15 : byte >> 4;
    const size_t group = k % 64 / 32;
    weights[k] = step[kScales4 + group * kTileRows + lane] * quant -
                 arithmetic::kMinimumUnit * step[kMinimums4 + group * kTileRows + lane];
  }
}

}  // namespace tandem::kernels
