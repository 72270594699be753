#include "kernels/gpu/layout.h"

#include "arithmetic/format.h"

namespace tandem::kernels::gpu {
namespace {

using arithmetic::kGroup;

// Low four bits of a column's quant; a byte of the CPU's holds those of k and k + 4 of a chunk
// of 8.
uint32_t nibble(const PackedMatrix& matrix, const uint8_t* tile, uint32_t k, uint32_t lane) {
  const uint8_t byte = tile[matrix.step(k / 64).low +
                            PackedStep::low_of(matrix.format, k % 64 / 8) + lane * 4 + k % 4];
  return k % 8 >= 4 ? byte >> 4U : byte & 15U;
}

void convert_row8(const PackedMatrix& matrix, uint32_t row, Weights& weights) {
  const uint8_t* tile = matrix.tile(row / kTileRows);
  const uint32_t lane = row % kTileRows;
  uint8_t* out = &weights.quants[size_t{row} * weights.padded];
  for (uint32_t k = 0; k < weights.padded; ++k) {
    // Stored as weight + 128: turning the top bit makes it signed.
    out[k] = tile[k / 4 * 64 + lane * 4 + k % 4] ^ 0x80U;
  }
}

void convert_nibbles(const PackedMatrix& matrix, uint32_t row, Weights& weights) {
  const uint8_t* tile = matrix.tile(row / kTileRows);
  const uint32_t lane = row % kTileRows;
  uint8_t* out = &weights.quants[size_t{row} * weights.padded / 2];
  for (uint32_t group = 0; group < weights.padded / kGroup; ++group) {
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t k = group * kGroup + i;
      *out++ = static_cast<uint8_t>(nibble(matrix, tile, k, lane) |
                                    nibble(matrix, tile, k + 16, lane) << 4U);
    }
  }
}

void convert_multipliers4(const PackedMatrix& matrix, uint32_t row, Weights& weights) {
  const uint8_t* tile = matrix.tile(row / kTileRows);
  const uint32_t lane = row % kTileRows;
  const uint32_t groups = weights.padded / kGroup;
  uint8_t* out = &weights.multipliers[size_t{row} * groups * 2];
  for (uint32_t group = 0; group < groups; ++group) {
    const uint8_t* step = tile + matrix.step(group / 2).scales;
    const uint8_t scale = step[group % 2 * kTileRows + lane];
    const uint8_t rest = step[2 * kTileRows + lane];
    *out++ = scale & 63U;
    *out++ = static_cast<uint8_t>(scale >> 6U | (group % 2 == 0 ? rest & 15U : uint32_t{rest} >> 4U)
                                                    << 2U);
  }
}

void convert_high6(const PackedMatrix& matrix, uint32_t row, Weights& weights) {
  // Both layouts keep the high bits of 16 columns in four bytes of the same order.
  const uint8_t* tile = matrix.tile(row / kTileRows);
  const uint32_t lane = row % kTileRows;
  uint8_t* out = &weights.high[size_t{row} * weights.padded / 4];
  for (uint32_t k = 0; k < weights.padded; k += 16) {
    const uint8_t* high =
        tile + matrix.step(k / 64).high + PackedStep::high_of(k % 64 / 8) + lane * 4;
    for (uint32_t i = 0; i < 4; ++i) *out++ = high[i];
  }
  const uint32_t groups = weights.padded / kGroup;
  for (uint32_t group = 0; group < groups; ++group) {
    weights.multipliers[size_t{row} * groups + group] =
        tile[matrix.step(group / 2).scales + group % 2 * kTileRows + lane];
  }
}

}  // namespace

Weights to_gpu(const PackedMatrix& matrix) {
  Weights weights;
  weights.format = matrix.format;
  weights.rows = matrix.rows;
  weights.columns = matrix.columns;
  weights.padded = padded_columns(matrix.columns);
  weights.row_scales.assign(matrix.row_scales.begin(), matrix.row_scales.begin() + matrix.rows);
  const uint64_t values = uint64_t{matrix.rows} * weights.padded;
  const bool eight = matrix.format == WeightFormat::k8;
  const bool six = matrix.format == WeightFormat::k6;
  weights.quants.resize(eight ? values : values / 2);
  if (six) weights.high.resize(values / 4);
  if (!eight) weights.multipliers.resize(values / kGroup * (six ? 1 : 2));
  for (uint32_t row = 0; row < matrix.rows; ++row) {
    if (eight) {
      convert_row8(matrix, row, weights);
      continue;
    }
    convert_nibbles(matrix, row, weights);
    if (six) {
      convert_high6(matrix, row, weights);
    } else {
      convert_multipliers4(matrix, row, weights);
    }
  }
  return weights;
}

Activations to_gpu(std::span<const int16_t> values, std::span<const int32_t> exponents,
                   uint32_t padded) {
  Activations x;
  x.tokens = static_cast<uint32_t>(exponents.size());
  x.padded = padded;
  x.planes.resize(size_t{x.tokens} * 2 * padded);
  x.exponents.assign(exponents.begin(), exponents.end());
  const uint32_t groups = (padded + kGroup - 1) / kGroup;
  x.group_sums.resize(size_t{x.tokens} * groups);
  const size_t columns = x.tokens == 0 ? 0 : values.size() / x.tokens;
  for (size_t t = 0; t < x.tokens; ++t) {
    std::vector<int32_t> high_sums(groups);
    std::vector<int32_t> low_sums(groups);
    for (size_t k = 0; k < columns; ++k) {
      const int32_t value = values[t * columns + k];
      const auto low = static_cast<int8_t>(value & 255);
      const int32_t high = (value - low) / 256;
      x.planes[t * 2 * padded + k] = static_cast<uint8_t>(high);
      x.planes[(t * 2 + 1) * padded + k] = static_cast<uint8_t>(low);
      high_sums[k / kGroup] += high;
      low_sums[k / kGroup] += low;
    }
    for (size_t g = 0; g < groups; ++g) {
      x.group_sums[t * groups + g] = (static_cast<uint32_t>(high_sums[g]) & 0xffffU) |
                                     static_cast<uint32_t>(low_sums[g]) << 16U;
    }
  }
  return x;
}

}  // namespace tandem::kernels::gpu
