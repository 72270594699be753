// Dot products of integer weights with 16-bit activations: exact integers, rounded once.
#pragma once

#include <cstdint>
#include <span>

#include "arithmetic/format.h"

namespace tandem::arithmetic {

/// The exact integer sum of weights[i] * x[i]; weights in [-127, 127], at most kMaxRow of them.
/// |sum| < 2^39.
int64_t dot8(std::span<const int8_t> weights, std::span<const int16_t> x);

/// One row of 4-bit weights: weight i is scales[g] * quants[i] - kMinimumUnit * minimums[g] with
/// g = i / kGroup, quants[i] in [0, 15], scales and minimums in [0, 63]. |weight| <= 945.
struct Row4 {
  std::span<const uint8_t> quants;
  std::span<const uint8_t> scales;
  std::span<const uint8_t> minimums;
};

/// The exact integer sum of a 4-bit row's weights times x; |sum| < 2^41.
int64_t dot4(const Row4& row, std::span<const int16_t> x);

/// One row of 6-bit weights: weight i is scales[g] * (quants[i] - 32), quants[i] in [0, 63], scales
/// in [0, 127]. |weight| <= 4064.
struct Row6 {
  std::span<const uint8_t> quants;
  std::span<const uint8_t> scales;
};

/// The exact integer sum of a 6-bit row's weights times x; |sum| < 2^43.
int64_t dot6(const Row6& row, std::span<const int16_t> x);

/// The float that a dot product stands for: round_f32(sum) * (row_scale * 2^exponent), where
/// row_scale * 2^exponent is exact and the product is rounded once.
inline float scaled(int64_t sum, float row_scale, int exponent) {
  return static_cast<float>(sum) * (row_scale * power_of_two(exponent));
}

/// Smallest row scale, for rows of zeros too: with kMinExponent it keeps row_scale * 2^e normal.
inline constexpr float kMinRowScale = 0x1p-30F;
/// Largest row scale: beyond it, a weight is refused at load as out of range.
inline constexpr float kMaxRowScale = 0x1p+10F;

}  // namespace tandem::arithmetic
