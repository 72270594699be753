#include "kernels/packed.h"

#include <algorithm>
#include <cstring>

#include "arithmetic/format.h"

namespace tandem::kernels {
namespace {

// Byte of a tile that holds the low four bits of a column, and whether they are its upper half.
size_t nibble_offset(const PackedMatrix& matrix, size_t k, uint32_t lane) {
  return matrix.step(k / 64).low + PackedStep::low_of(matrix.format, k % 64 / 8) + lane * 4 + k % 4;
}
bool upper(size_t k) {
  return k % 8 >= 4;
}

// The same for the high bits (k6), which begin at bit high_shift(k).
size_t high_offset(const PackedMatrix& matrix, size_t k, uint32_t lane) {
  return matrix.step(k / 64).high + PackedStep::high_of(k % 64 / 8) + lane * 4 + k % 4;
}
size_t high_shift(size_t k) {
  return k % 16 / 4 * 2;
}

uint32_t load4(const void* bytes) {
  uint32_t four = 0;
  std::memcpy(&four, bytes, 4);
  return four;
}

// Low four bits of a row's quants. Whole chunks of 8 columns are written at once.
void store_nibbles(const PackedMatrix& matrix, uint8_t* tile, uint32_t lane,
                   std::span<const uint8_t> quants) {
  const size_t whole = quants.size() / 8 * 8;
  for (size_t k = 0; k < whole; k += 8) {
    const uint32_t low = load4(&quants[k]) & 0x0f0f0f0fU;
    const uint32_t high = load4(&quants[k + 4]) & 0x0f0f0f0fU;
    const uint32_t both = low | high << 4;
    std::memcpy(tile + nibble_offset(matrix, k, lane), &both, 4);
  }
  for (size_t k = whole; k < quants.size(); ++k) {
    uint8_t& byte = tile[nibble_offset(matrix, k, lane)];
    const uint32_t value = quants[k] & 15U;
    byte = static_cast<uint8_t>(upper(k) ? (byte & 0x0fU) | value << 4 : (byte & 0xf0U) | value);
  }
}

uint32_t load_nibble(const PackedMatrix& matrix, const uint8_t* tile, size_t k, uint32_t lane) {
  const uint8_t byte = tile[nibble_offset(matrix, k, lane)];
  return upper(k) ? byte >> 4 : byte & 15U;
}

}  // namespace

PackedMatrix make_unwritten(WeightFormat format, uint32_t rows, uint32_t columns) {
  PackedMatrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.row_scales = Block<float>(size_t{tile_count(rows)} * kTileRows);
  if (rows != 0 && matrix.row_scales.size() == 0) return matrix;
  matrix.data = Block<uint8_t>(tile_count(rows) * matrix.tile_bytes());
  return matrix;
}

PackedMatrix make_packed(WeightFormat format, uint32_t rows, uint32_t columns) {
  PackedMatrix matrix = make_unwritten(format, rows, columns);
  if (format == WeightFormat::k8) std::fill(matrix.data.begin(), matrix.data.end(), 128);
  return matrix;
}

void store_row8(PackedMatrix& matrix, uint32_t row, std::span<const int8_t> weights,
                float row_scale) {
  uint8_t* tile = matrix.data.data() + row / kTileRows * matrix.tile_bytes();
  const uint32_t lane = row % kTileRows;
  const size_t whole = weights.size() / 4 * 4;
  for (size_t k = 0; k < whole; k += 4) {
    // Adding 128 to a byte turns its top bit.
    const uint32_t four = load4(&weights[k]) ^ 0x80808080U;
    std::memcpy(tile + k / 4 * 64 + lane * 4, &four, 4);
  }
  for (size_t k = whole; k < weights.size(); ++k) {
    tile[k / 4 * 64 + lane * 4 + k % 4] = static_cast<uint8_t>(weights[k] + 128);
  }
  matrix.row_scales[row] = row_scale;
}

void store_row4(PackedMatrix& matrix, uint32_t row, std::span<const uint8_t> quants,
                std::span<const uint8_t> scales, std::span<const uint8_t> minimums,
                float row_scale) {
  uint8_t* tile = matrix.data.data() + row / kTileRows * matrix.tile_bytes();
  const uint32_t lane = row % kTileRows;
  store_nibbles(matrix, tile, lane, quants);
  for (size_t group = 0; group < scales.size(); ++group) {
    uint8_t* step = tile + matrix.step(group / 2).scales;
    step[group % 2 * kTileRows + lane] =
        static_cast<uint8_t>(scales[group] | (minimums[group] & 3U) << 6);
    uint8_t& high = step[2 * kTileRows + lane];
    const uint32_t value = minimums[group] >> 2;
    high =
        static_cast<uint8_t>(group % 2 == 0 ? (high & 0xf0U) | value : (high & 0x0fU) | value << 4);
  }
  matrix.row_scales[row] = row_scale;
}

void store_row6(PackedMatrix& matrix, uint32_t row, std::span<const uint8_t> quants,
                std::span<const uint8_t> scales, float row_scale) {
  uint8_t* tile = matrix.data.data() + row / kTileRows * matrix.tile_bytes();
  const uint32_t lane = row % kTileRows;
  store_nibbles(matrix, tile, lane, quants);
  for (size_t k = 0; k < quants.size(); ++k) {
    const size_t shift = high_shift(k);
    uint8_t& byte = tile[high_offset(matrix, k, lane)];
    byte = static_cast<uint8_t>((byte & ~(3U << shift)) | (quants[k] >> 4U) << shift);
  }
  for (size_t group = 0; group < scales.size(); ++group) {
    tile[matrix.step(group / 2).scales + group % 2 * kTileRows + lane] = scales[group];
  }
  matrix.row_scales[row] = row_scale;
}

void load_row(const PackedMatrix& matrix, uint32_t row, std::span<int32_t> weights) {
  const uint8_t* tile = matrix.tile(row / kTileRows);
  const uint32_t lane = row % kTileRows;
  for (size_t k = 0; k < weights.size(); ++k) {
    const size_t group = k / arithmetic::kGroup;
    switch (matrix.format) {
      case WeightFormat::k8:
        weights[k] = tile[k / 4 * 64 + lane * 4 + k % 4] - 128;
        break;
      case WeightFormat::k4: {
        const uint8_t* step = tile + matrix.step(group / 2).scales;
        const uint8_t scale = step[group % 2 * kTileRows + lane];
        const uint8_t rest = step[2 * kTileRows + lane];
        const int32_t minimum = scale >> 6 | (group % 2 == 0 ? rest & 15 : rest >> 4) << 2;
        weights[k] = (scale & 63) * static_cast<int32_t>(load_nibble(matrix, tile, k, lane)) -
                     arithmetic::kMinimumUnit * minimum;
        break;
      }
      case WeightFormat::k6: {
        const uint32_t top = tile[high_offset(matrix, k, lane)] >> high_shift(k) & 3U;
        const auto quant = static_cast<int32_t>(load_nibble(matrix, tile, k, lane) | top << 4);
        const uint8_t* scales = tile + matrix.step(group / 2).scales;
        weights[k] = scales[group % 2 * kTileRows + lane] * (quant - 32);
        break;
      }
    }
  }
}

}  // namespace tandem::kernels
