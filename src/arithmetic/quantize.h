// Activations as 16-bit integers with a power-of-two scale.
#pragma once

#include <cstdint>
#include <span>

#include "arithmetic/format.h"

namespace tandem::arithmetic {

/// Exponent e for a vector whose largest magnitude has these bits: the smallest e with
/// round(max * 2^-e) <= kMaxActivation. For bits below kMinBits it is kMinExponent - 14 and the
/// vector counts as zero. `bits` must be below kInfinityBits. Range: -94 to 114.
inline int quantize_exponent(uint32_t bits) {
  if (bits < kMinBits) return kMinExponent - 14;
  const int exponent = static_cast<int>(bits >> 23) - 127 - 14;
  // 32639.5 * 512: from this 24-bit mantissa on, rounding to 16 bits passes kMaxActivation.
  const uint32_t mantissa = (bits & 0x7fffffU) | 0x800000U;
  return mantissa >= 16711424U ? exponent + 1 : exponent;
}

/// Largest magnitude_bits of a vector; an exact maximum, in any order.
uint32_t max_magnitude(std::span<const float> x);

/// values[i] = round(x[i] * 2^-e), |values[i]| <= kMaxActivation; sets `exponent` to e.
/// Returns false, with zeros, if some x[i] is infinite or not a number.
[[nodiscard]] bool quantize(std::span<const float> x, std::span<int16_t> values, int& exponent);

/// The same for 32-bit integers r[i] that stand for r[i] * 2^e: |r[i]| < 2^31 are brought to
/// |values[i]| <= kMaxActivation by the smallest right shift that does, with shift_round.
/// Returns the new exponent, e + shift.
int quantize_integers(std::span<const int32_t> r, int exponent, std::span<int16_t> values);

/// Channels that share a multiplier where keys and values are held in 8 bits.
inline constexpr uint32_t kNarrowGroup = 32;

/// 16-bit integers |v| <= kMaxActivation of one group as multiples q m: m, 1 to 256, is the least
/// for which all |q| <= 127, q = floor((v + floor(m / 2)) / m). Returns m. |q m - v| <= m / 2.
int32_t narrow(std::span<const int16_t> values, std::span<int8_t> q);

}  // namespace tandem::arithmetic
