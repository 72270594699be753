#include "arithmetic/rope.h"

#include <cmath>

#include "arithmetic/quantize.h"

namespace tandem::arithmetic {
namespace {

// Sine and cosine of t quarter-eighth turns: angle = (pi / 4) * t, t in [0, 1] with 30 fractional
// bits. Taylor terms in 62-bit products; the first left-out terms are below 2^-24.
int64_t multiply30(int64_t a, int64_t b) {
  return (a * b + (int64_t{1} << 29)) >> 30;
}

struct Octant {
  int64_t cosine;  // units of 2^-30
  int64_t sine;
};

Octant octant(int64_t t) {
  constexpr int64_t kQuarterPi = 843314857;  // pi / 4 * 2^30
  const int64_t x = multiply30(t, kQuarterPi);
  const int64_t square = multiply30(x, x);
  constexpr int64_t kOne = int64_t{1} << 30;
  int64_t sine = kOne - square / 72;
  sine = kOne - multiply30(square, sine) / 42;
  sine = kOne - multiply30(square, sine) / 20;
  sine = kOne - multiply30(square, sine) / 6;
  sine = multiply30(x, sine);
  int64_t cosine = kOne - square / 56;
  cosine = kOne - multiply30(square, cosine) / 30;
  cosine = kOne - multiply30(square, cosine) / 12;
  cosine = kOne - multiply30(square, cosine) / 2;
  return {cosine, sine};
}

}  // namespace

Rotation rotation(uint64_t phase) {
  const auto eighth = static_cast<unsigned>(phase >> 61);
  int64_t t = static_cast<int64_t>((phase << 3) >> 34);
  if ((eighth & 1U) != 0) t = (int64_t{1} << 30) - t;
  const Octant o = octant(t);
  const bool swap = ((eighth + 1) & 2U) != 0;
  int64_t cosine = swap ? o.sine : o.cosine;
  int64_t sine = swap ? o.cosine : o.sine;
  if (eighth >= 2 && eighth < 6) cosine = -cosine;
  if (eighth >= 4) sine = -sine;
  return {static_cast<int32_t>(shift_round(cosine, 15)),
          static_cast<int32_t>(shift_round(sine, 15))};
}

double logarithm(double x) {
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)).
  int e = 0;
  while (x >= 1.4142135623730951) {
    x *= 0.5;
    ++e;
  }
  while (x < 0.7071067811865476) {
    x *= 2.0;
    --e;
  }
  const double z = (x - 1.0) / (x + 1.0);
  const double square = z * z;
  double sum = 0.0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return 2.0 * z * sum + e * 0.6931471805599453;
}

double inverse_power(double base, double exponent) {
  // e^-y by halving y until the series converges fast, then squaring back.
  double y = exponent * logarithm(base);
  int halvings = 0;
  while (y > 0.03125) {
    y *= 0.5;
    ++halvings;
  }
  double sum = 1.0;
  for (int k = 10; k >= 1; --k) sum = 1.0 - sum * y / k;
  for (int i = 0; i < halvings; ++i) sum *= sum;
  return sum;
}

uint64_t phase_step(double radians) {
  const double turns = radians / 6.283185307179586;
  // The top 32 bits and the rest apart: a double holds 53.
  const double scaled = turns * 4294967296.0;
  const auto high = static_cast<uint64_t>(scaled);
  const double rest = (scaled - static_cast<double>(high)) * 4294967296.0;
  // NOLINTNEXTLINE(bugprone-incorrect-roundings): what the contract says, to the last case.
  return (high << 32) + static_cast<uint64_t>(rest + 0.5);
}

int rotate(std::span<int16_t> x, int exponent, std::span<const Rotation> rotations,
           std::span<int32_t> scratch) {
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const int32_t a = x[i];
    const int32_t b = x[i + half];
    const Rotation r = rotations[i];
    scratch[i] = a * r.cosine - b * r.sine;
    scratch[i + half] = b * r.cosine + a * r.sine;
  }
  return quantize_integers(scratch.first(x.size()), exponent - 15, x);
}

}  // namespace tandem::arithmetic
