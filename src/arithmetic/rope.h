// Rotary position embedding on integers: phases as 64-bit fractions of a turn, rotations of 16-bit
// values by 16-bit sines and cosines.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::arithmetic {

/// A rotation's cosine and sine in units of 2^-15, each in [-32768, 32768].
struct Rotation {
  int32_t cosine = 32768;
  int32_t sine = 0;
};

/// Cosine and sine of a phase given in units of 2^-64 turns. Integer polynomials on the top bits;
/// |error| < 0.6 units of 2^-15.
Rotation rotation(uint64_t phase);

/// Frequency `radians` a position as a phase step: round(radians / (2 pi) * 2^64), for radians in
/// [0, 2 pi). position * step (mod 2^64) is the exact phase of any position.
uint64_t phase_step(double radians);

/// base^(-exponent) for base >= 1 and exponent in [0, 4], from +, -, * and / on doubles alone (IEEE
/// 754 on every processor, no libm), so that every machine gets the same bits. Relative error <
/// 1e-12, and < 1e-13 for exponents up to 1, which rotary frequencies have.
double inverse_power(double base, double exponent);
/// Natural logarithm of x > 0, likewise.
double logarithm(double x);

/// Rotates the pairs (x[i], x[i + n/2]) of a head of n values by rotations[i] and brings the result
/// back to 16 bits: r = (x[i] c - x[i + n/2] s, x[i + n/2] c + x[i] s) in units of 2^-15, exact in
/// 32 bits, then quantize_integers. `x` is replaced; the new exponent is returned.
int rotate(std::span<int16_t> x, int exponent, std::span<const Rotation> rotations,
           std::span<int32_t> scratch);

}  // namespace tandem::arithmetic
