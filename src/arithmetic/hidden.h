// The hidden state at a layer boundary: binary16 with a power-of-two exponent a token.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::arithmetic {

/// Nearest binary16 (ties to even, subnormals kept) of a finite x with |x| < 65520.
uint16_t to_half(float x);
/// Exact value of a binary16 as binary32. Infinities and NaN widen to themselves.
float from_half(uint16_t bits);

/// Rounds one token's values to the boundary format: the exponent x makes the largest magnitude
/// lie in [2^14, 2^15) before rounding; half[i] = to_half(values[i] * 2^-x). A token below
/// 2^kMinExponent becomes zeros with exponent 0. Returns false if a value is not finite.
[[nodiscard]] bool to_boundary(std::span<const float> values, std::span<uint16_t> half,
                               int16_t& exponent);

/// values[i] = from_half(half[i]) * 2^exponent, exact (exponents from to_boundary: -94 to 113).
void from_boundary(std::span<const uint16_t> half, int16_t exponent, std::span<float> values);

}  // namespace tandem::arithmetic
