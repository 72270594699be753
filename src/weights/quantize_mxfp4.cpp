// 4-bit floats with a power of two a block of 32 become 6-bit integers with an integer scale a
// group of 32, without loss unless a row's blocks are more than seven powers of two apart.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "arithmetic/dot.h"
#include "arithmetic/format.h"
#include "weights/quantize_tile.h"

namespace tandem::weights {
namespace {

constexpr int kNone = 1000;     // the unit of a group of zeros
constexpr int kMostShift = 6;   // scales are powers of two up to 64
constexpr int32_t kReach = 31;  // of a quant, less its 32

// The largest power of two that all values of a group are multiples of, or kNone.
int unit_of(const float* values) {
  int unit = kNone;
  for (uint32_t i = 0; i < arithmetic::kGroup; ++i) {
    const uint32_t bits = arithmetic::magnitude_bits(values[i]);
    if (bits == 0) continue;
    const uint32_t mantissa = (bits & 0x7fffffU) | (bits >> 23 == 0 ? 0U : 0x800000U);
    const int exponent = std::max(static_cast<int>(bits >> 23), 1) - 127 - 23;
    unit = std::min(unit, exponent + std::countr_zero(mantissa));
  }
  return unit;
}

float largest_of(const float* values) {
  float largest = 0;
  for (uint32_t i = 0; i < arithmetic::kGroup; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
  }
  return largest;
}

// How far quants of a group may be shifted up: their magnitudes stay within kReach.
int room_above(float largest, int unit) {
  int room = 0;
  while (std::ldexp(largest, 1 + room - unit) <= static_cast<float>(kReach) && room < 5) ++room;
  return room;
}

// One row; false if a value is not finite or too large.
bool quantize_row(const std::vector<float>& row, std::vector<uint8_t>& quants,
                  std::vector<uint8_t>& scales, float& row_scale) {
  const size_t groups = scales.size();
  int base = kNone;
  int highest = -kNone;  // no base below it holds every group
  for (size_t g = 0; g < groups; ++g) {
    const float* values = row.data() + g * arithmetic::kGroup;
    const float largest = largest_of(values);
    if (!std::isfinite(largest)) return false;
    const int unit = unit_of(values);
    if (unit == kNone) continue;
    base = std::min(base, unit);
    highest = std::max(highest, unit - kMostShift - room_above(largest, unit));
  }
  if (base == kNone) base = 0;
  base = std::clamp(std::max(base, highest), -30, 10);
  row_scale = std::ldexp(1.0F, base);
  for (size_t g = 0; g < groups; ++g) {
    const float* values = row.data() + g * arithmetic::kGroup;
    const int unit = unit_of(values);
    const int shift = unit == kNone ? 0 : std::clamp(unit - base, 0, kMostShift);
    scales[g] = static_cast<uint8_t>(1U << static_cast<unsigned>(shift));
    for (uint32_t i = 0; i < arithmetic::kGroup; ++i) {
      const float q = std::nearbyintf(std::ldexp(values[i], -base - shift));
      if (std::fabs(q) > static_cast<float>(kReach)) return false;
      quants[g * arithmetic::kGroup + i] = static_cast<uint8_t>(static_cast<int32_t>(q) + 32);
    }
  }
  return true;
}

bool quantize_tile(const TileShape& shape, TileScratch& scratch, uint8_t* tile, float* row_scales) {
  kernels::PackedMatrix whole =
      kernels::make_packed(kernels::WeightFormat::k6, kernels::kTileRows, shape.columns);
  if (whole.data.size() == 0) return false;
  const size_t groups = (shape.columns + arithmetic::kGroup - 1) / arithmetic::kGroup;
  std::vector<float> row(groups * arithmetic::kGroup);
  std::vector<uint8_t> quants(row.size());
  std::vector<uint8_t> scales(groups);
  for (uint32_t r = 0; r < shape.rows; ++r) {
    for (uint32_t k = 0; k < shape.columns; ++k) {
      row[k] = scratch.weights[size_t{k} * kernels::kTileRows + r];
    }
    float scale = 0;
    if (!quantize_row(row, quants, scales, scale)) return false;
    kernels::store_row6(whole, r, std::span(quants).first(shape.columns), scales, scale);
  }
  std::memcpy(tile, whole.data.data(), whole.data.size());
  std::copy_n(whole.row_scales.data(), kernels::kTileRows, row_scales);
  return true;
}

}  // namespace

TileQuantizer mxfp4_tile_quantizer() {
  return quantize_tile;
}

}  // namespace tandem::weights
