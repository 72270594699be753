// Exponentials, reciprocals and inverse square roots as integer functions. Nothing from libm, no
// float division, no float square root: every machine can compute these with 32-bit integers.
#pragma once

#include <bit>
#include <cstdint>

#include "arithmetic/format.h"

namespace tandem::arithmetic {

/// 2^(-x / 65536) in units of 2^-16 for x in [0, 65535]: 65536 down to 32768.
/// 2^-f = 1 - f G(f) with G a cubic; |relative error| < 5.1e-5, RMS 1e-5. All products fit 32 bits.
/// It falls, but for steps up by one unit.
inline uint32_t exp2_fraction(uint32_t x) {
  const uint32_t c2 = 56773U - ((x * 30743U + (1U << 17)) >> 18);
  const uint32_t c1 = 62906U - ((x * c2 + (1U << 17)) >> 18);
  const uint32_t c0 = 45426U - ((x * c1 + (1U << 17)) >> 18);
  return 65536U - ((x * c0 + (1U << 15)) >> 16);
}

/// A number mantissa * 2^exponent.
struct Scaled {
  uint32_t mantissa = 0;
  int exponent = 0;
};

/// 1 / d for d >= 1: floor(2^54 / (d >> t)) * 2^(-54 - t) where t brings d to 31 bits (a left shift
/// if it is shorter). The mantissa is in [2^23, 2^24], exact in binary32; relative error < 2^-22.
inline Scaled reciprocal(uint64_t d) {
  const int shift = 33 - std::countl_zero(d);  // bits(d) - 31
  const uint64_t top = shift >= 0 ? d >> shift : d << -shift;
  return {static_cast<uint32_t>((uint64_t{1} << 54) / top), -54 - shift};
}

/// 1 / sqrt(v) for a positive normal v: with v = m * 2^(2p), m an integer in [2^23, 2^25), the
/// largest integer r with r * r * m <= 2^62, times 2^(-31 - p). Relative error < 2^-18.
Scaled inverse_square_root(float v);

/// log2(e) * 65536 as binary32.
inline constexpr float kLog2e16 = 94548.4609375F;

/// The logistic function 1 / (1 + exp(-x)) as a product s * 2^exponent with s <= 2^15.
/// With d = min(round(|x| * kLog2e16), 2^22), k = d >> 16 and m = exp2_fraction(d & 65535):
/// e = shift_round(m, k), n = x < 0 ? m : 65536, s = floor((n * 2^15 + floor((65536 + e) / 2)) /
/// (65536 + e)), exponent = -15 - (x < 0 ? k : 0). Relative error < 2^-13.6. All fits 32 bits.
Scaled logistic(float x);

}  // namespace tandem::arithmetic
