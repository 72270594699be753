#include "arithmetic/hidden.h"

#include <algorithm>
#include <bit>

#include "arithmetic/format.h"
#include "arithmetic/quantize.h"

namespace tandem::arithmetic {

uint16_t to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent < -25) return static_cast<uint16_t>(sign);
  // Below 2^-14 the result is subnormal: its last place is 2^-24 whatever the exponent.
  const int shift = exponent < -14 ? 13 + (-14 - exponent) : 13;
  const uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  uint32_t rounded = mantissa >> shift;
  const uint32_t rest = mantissa & ((1U << shift) - 1);
  const uint32_t half = 1U << (shift - 1);
  if (rest > half || (rest == half && (rounded & 1U) != 0)) ++rounded;
  // The hidden bit and a rounding carry both move the exponent by plain addition.
  const uint32_t base = exponent < -14 ? 0U : static_cast<uint32_t>(exponent + 14) << 10;
  return static_cast<uint16_t>(sign | (base + rounded));
}

float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 31U;
  const uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | kInfinityBits | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float value = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -value : value;
}

bool to_boundary(std::span<const float> values, std::span<uint16_t> half, int16_t& exponent) {
  const uint32_t bits = max_magnitude(values);
  exponent = 0;
  if (bits < kMinBits || bits >= kInfinityBits) {
    std::fill(half.begin(), half.end(), uint16_t{0});
    return bits < kInfinityBits;
  }
  exponent = static_cast<int16_t>(static_cast<int>(bits >> 23) - 127 - 14);
  const float factor = power_of_two(-exponent);
  for (size_t i = 0; i < values.size(); ++i) half[i] = to_half(values[i] * factor);
  return true;
}

void from_boundary(std::span<const uint16_t> half, int16_t exponent, std::span<float> values) {
  const float factor = power_of_two(exponent);
  for (size_t i = 0; i < half.size(); ++i) values[i] = from_half(half[i]) * factor;
}

}  // namespace tandem::arithmetic
