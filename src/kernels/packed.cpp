#include "kernels/packed.h"

#include <algorithm>
#include <cstring>

#include "arithmetic/format.h"

namespace tandem::kernels {
namespace {

// Byte of a tile that holds the low four bits of a step's column, and whether they are its upper
// half.
size_t nibble_offset(WeightFormat format, const PackedStep& step, size_t column, uint32_t lane) {
  return step.low + PackedStep::low_of(format, column / 8) + lane * 4 + column % 4;
}
bool upper(size_t column) {
  return column % 8 >= 4;
}

// The same for the high bits (k6), which begin at bit high_shift(column).
size_t high_offset(const PackedStep& step, size_t column, uint32_t lane) {
  return step.high + PackedStep::high_of(column / 8) + lane * 4 + column % 4;
}
size_t high_shift(size_t column) {
  return column % 16 / 4 * 2;
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
    const PackedStep step = matrix.step(k / kColumnPad);
    std::memcpy(tile + nibble_offset(matrix.format, step, k % kColumnPad, lane), &both, 4);
  }
  for (size_t k = whole; k < quants.size(); ++k) {
    const PackedStep step = matrix.step(k / kColumnPad);
    uint8_t& byte = tile[nibble_offset(matrix.format, step, k % kColumnPad, lane)];
    const uint32_t value = quants[k] & 15U;
    byte = static_cast<uint8_t>(upper(k) ? (byte & 0x0fU) | value << 4 : (byte & 0xf0U) | value);
  }
}

uint32_t load_nibble(WeightFormat format, const PackedStep& step, const uint8_t* tile,
                     size_t column, uint32_t lane) {
  const uint8_t byte = tile[nibble_offset(format, step, column, lane)];
  return upper(column) ? byte >> 4 : byte & 15U;
}

// One group of a row, or what of it there is: `column` is its first one's place in the step.
void load_group4(const uint8_t* tile, const PackedStep& step, size_t column, uint32_t lane,
                 std::span<int32_t> weights) {
  const size_t group = column / arithmetic::kGroup;
  const uint8_t* scales = tile + step.scales;
  const uint8_t scale = scales[group * kTileRows + lane];
  const uint8_t rest = scales[2 * kTileRows + lane];
  const int32_t minimum = scale >> 6 | (group == 0 ? rest & 15 : rest >> 4) << 2;
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint32_t quant = load_nibble(WeightFormat::k4, step, tile, column + i, lane);
    weights[i] = (scale & 63) * static_cast<int32_t>(quant) - arithmetic::kMinimumUnit * minimum;
  }
}

void load_group6(const uint8_t* tile, const PackedStep& step, size_t column, uint32_t lane,
                 std::span<int32_t> weights) {
  const int32_t scale = tile[step.scales + column / arithmetic::kGroup * kTileRows + lane];
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t k = column + i;
    const uint32_t low = load_nibble(WeightFormat::k6, step, tile, k, lane);
    const uint32_t top = tile[high_offset(step, k, lane)] >> high_shift(k) & 3U;
    weights[i] = scale * (static_cast<int32_t>(low | top << 4) - 32);
  }
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
    const PackedStep step = matrix.step(k / kColumnPad);
    uint8_t& byte = tile[high_offset(step, k % kColumnPad, lane)];
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
  if (matrix.format == WeightFormat::k8) {
    for (size_t k = 0; k < weights.size(); ++k) {
      weights[k] = tile[k / 4 * 64 + lane * 4 + k % 4] - 128;
    }
    return;
  }
  const auto load = matrix.format == WeightFormat::k4 ? load_group4 : load_group6;
  for (size_t begin = 0; begin < weights.size(); begin += kColumnPad) {
    const PackedStep step = matrix.step(begin / kColumnPad);
    const size_t end = std::min<size_t>(weights.size() - begin, kColumnPad);
    for (size_t column = 0; column < end; column += arithmetic::kGroup) {
      const size_t count = std::min<size_t>(end - column, arithmetic::kGroup);
      load(tile, step, column, lane, weights.subspan(begin + column, count));
    }
  }
}

}  // namespace tandem::kernels
