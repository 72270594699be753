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

/// Rounds 16-bit integers to 8 bits in place: v becomes shift_round(v, s), s the smallest shift
/// that brings all of them within +-127, 0 to 8. Returns s: what the exponent rises by.
int narrow(std::span<int16_t> values);

}  // namespace tandem::arithmetic
