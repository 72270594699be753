// Rotary embedding: phases, sines and frequencies against long double.
#include "arithmetic/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "arithmetic/format.h"

namespace tandem::arithmetic {
namespace {

constexpr long double kTurn = 6.283185307179586476925286766559L;

TEST(Rope, RotationsAreWithinTheirErrorBound) {
  std::mt19937_64 random(1);
  long double worst = 0;
  const auto check = [&worst](uint64_t phase) {
    const Rotation r = rotation(phase);
    const long double angle = std::ldexp(static_cast<long double>(phase), -64) * kTurn;
    worst = std::max(worst, std::abs(r.cosine - 32768.0L * std::cos(angle)));
    worst = std::max(worst, std::abs(r.sine - 32768.0L * std::sin(angle)));
    ASSERT_LE(std::abs(r.cosine), 32768);
    ASSERT_LE(std::abs(r.sine), 32768);
  };
  for (uint64_t i = 0; i < 65536; ++i) check(i << 48);
  for (uint64_t eighth = 0; eighth < 8; ++eighth) {
    for (uint64_t near = 0; near < 50; ++near) {
      check((eighth << 61) + near);
      check((eighth << 61) - near);
      check((eighth << 61) + (near << 30));
    }
  }
  for (int i = 0; i < 1000000; ++i) check(random());
  EXPECT_LT(worst, 0.6L);
}

TEST(Rope, QuarterTurnsAreExact) {
  const auto expect = [](uint64_t phase, int32_t cosine, int32_t sine) {
    EXPECT_EQ(rotation(phase).cosine, cosine);
    EXPECT_EQ(rotation(phase).sine, sine);
  };
  expect(0, 32768, 0);
  expect(uint64_t{1} << 62, 0, 32768);
  expect(uint64_t{1} << 63, -32768, 0);
  expect(uint64_t{3} << 62, 0, -32768);
}

TEST(Rope, PhaseStepsKeepFarPositionsExact) {
  for (const double radians : {1.0, 0.5, 1e-4, 6.28, 3.0e-7, 0.0}) {
    const uint64_t step = phase_step(radians);
    const long double turns = static_cast<long double>(radians) / kTurn;
    // A double's relative error of the quotient.
    EXPECT_NEAR(std::ldexp(static_cast<long double>(step), -64), turns, turns * 3e-16L + 0x1p-64L);
  }
}

TEST(Rope, LogarithmsAndPowersAreWithinTheirErrorBound) {
  for (const double x : {1e-30, 0.5, 1.0, 1.5, 2.0, 10000.0, 1e6, 5e6, 1e12}) {
    const long double exact = std::log(static_cast<long double>(x));
    EXPECT_NEAR(logarithm(x), exact, std::abs(exact) * 1e-15L + 1e-16L) << x;
  }
  for (const double base : {1.0, 2.0, 10000.0, 500000.0, 1e6, 1e7}) {
    for (int i = 0; i <= 256; ++i) {
      const double exponent = i / 64.0;
      const long double exact =
          std::pow(static_cast<long double>(base), -static_cast<long double>(exponent));
      EXPECT_NEAR(inverse_power(base, exponent) / exact, 1.0L, exponent <= 1.0 ? 1e-13L : 1e-12L)
          << base << " " << exponent;
    }
  }
}

TEST(Rope, RotatingKeepsThePairsLengthAndTurnsIt) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int16_t> x(16);
    for (int16_t& v : x) {
      v = static_cast<int16_t>(static_cast<int64_t>(random() % 65279) - kMaxActivation);
    }
    std::vector<uint64_t> phases(8);
    std::vector<Rotation> rotations;
    for (uint64_t& p : phases) {
      p = random();
      rotations.push_back(rotation(p));
    }
    std::vector<int16_t> y = x;
    std::vector<int32_t> scratch(16);
    const int exponent = rotate(y, 5, rotations, scratch);
    const long double unit = std::ldexp(1.0L, exponent - 5);
    for (size_t i = 0; i < 8; ++i) {
      const long double angle = std::ldexp(static_cast<long double>(phases[i]), -64) * kTurn;
      const long double c = std::cos(angle);
      const long double s = std::sin(angle);
      // Half a unit of the result, and 0.6 of 2^15 of each of two values.
      const long double bound = unit * 0.5L + 2 * 0.6L * kMaxActivation / 32768;
      ASSERT_NEAR(y[i] * unit, x[i] * c - x[i + 8] * s, bound);
      ASSERT_NEAR(y[i + 8] * unit, x[i + 8] * c + x[i] * s, bound);
    }
  }
}

}  // namespace
}  // namespace tandem::arithmetic
