// The gated delta net's functions against long double, and its order of operations.
#include "arithmetic/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "arithmetic/quantize.h"

namespace tandem::arithmetic {
namespace {

TEST(DeltaRule, FractionsOfPowersAreWithinFourUnits) {
  std::mt19937 random(1);
  for (uint32_t i = 0; i < 200000; ++i) {
    const uint32_t x = i < 1000 ? i : i < 2000 ? ~(i - 1000) : static_cast<uint32_t>(random());
    const long double exact = std::exp2(32.0L - static_cast<long double>(x) / 4294967296.0L);
    EXPECT_NEAR(static_cast<double>(static_cast<long double>(exp2_fraction32(x)) - exact), 0, 4)
        << x;
  }
  EXPECT_EQ(exp2_fraction32(0), uint64_t{1} << 32);
}

TEST(DeltaRule, SoftplusIsWithinItsErrorBound) {
  for (int i = -40000; i <= 40000; ++i) {
    const float x = static_cast<float>(i) * 0.001F;
    const long double exact = std::log1p(std::exp(static_cast<long double>(x)));
    const long double bound = 0x1p-26L + 0x1p-23L * exact;
    EXPECT_LT(std::abs(softplus(x) - exact), bound) << x;
  }
  EXPECT_EQ(softplus(-1e30F), 0.0F);
  EXPECT_EQ(softplus(1e30F), 1e30F);
}

TEST(DeltaRule, ConstantsOfDecayAreExponentials) {
  for (int step = -3000; step <= 3000; ++step) {
    const double a = step * 0.01;
    const long double exact = std::exp(static_cast<long double>(a)) * 1.4426950408889634074L;
    EXPECT_LT(std::abs(decay_constant(a) - exact), exact * 0x1p-24L) << a;
  }
}

TEST(DeltaRule, SlowDecayKeepsItsRate) {
  // What is left after as many steps as halve a state: the rate's relative error, not the decay's.
  for (const float a_log : {-4.0F, -1.0F, 0.0F, 2.0F}) {
    for (int step = 0; step <= 35; ++step) {
      const float a = -9.0F + 0.37F * static_cast<float>(step);
      const long double rate = std::exp(static_cast<long double>(a_log)) *
                               std::log1p(std::exp(static_cast<long double>(a) + 0.5L));
      const float g = decay(a, 0.5F, decay_constant(a_log));
      if (rate > 16) continue;
      EXPECT_NEAR(static_cast<double>(-std::log(static_cast<long double>(g)) / rate), 1,
                  1e-5 + 0x1p-23 / static_cast<double>(rate))
          << a_log << " " << a;
    }
  }
  EXPECT_EQ(decay(100, 0, decay_constant(3)), 0.0F);
  EXPECT_EQ(decay(-100, 0, decay_constant(0)), 1.0F);
}

TEST(DeltaRule, UnitVectorsHaveLengthOne) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const float size : {1e-20F, 1e-3F, 1.0F, 1e15F}) {
    std::vector<float> x(128);
    for (float& value : x) value = normal(random) * size;
    std::vector<int16_t> scratch(x.size());
    std::vector<float> y(x.size());
    ASSERT_TRUE(unit_vector(x, scratch, y));
    long double squares = 0;
    long double length = 1e-6L;
    for (const float value : x) length += static_cast<long double>(value) * value;
    for (size_t i = 0; i < x.size(); ++i) {
      squares += static_cast<long double>(y[i]) * y[i];
      EXPECT_NEAR(y[i], static_cast<double>(x[i] / std::sqrt(length)), 1e-5);
      EXPECT_EQ(y[i] * 1048576.0F, std::nearbyint(y[i] * 1048576.0F));
    }
    if (size >= 1) {
      EXPECT_NEAR(static_cast<double>(squares), 1, 1e-4);
    }
  }
  std::vector<float> x(16, 1.0F);
  std::vector<int16_t> scratch(16);
  std::vector<float> y(16);
  x[3] = INFINITY;
  EXPECT_FALSE(unit_vector(x, scratch, y));
  x[3] = 0x1p120F;
  EXPECT_FALSE(unit_vector(x, scratch, y));
}

struct Case {
  explicit Case(uint32_t seed) : random(seed) {
    for (auto* vector : {&key, &query}) {
      vector->resize(kDim);
      for (float& value : *vector) {
        value = std::nearbyint(normal(random) * 90000.0F) * 0x1p-20F;
      }
    }
    state.resize(size_t{kDim} * kStateColumns);
    for (float& value : state) value = normal(random);
    for (float& value : values) value = normal(random);
    token.key = key.data();
    token.query = query.data();
    token.decay = 0.93F;
    token.rate = 0.4F;
    token.scale = 0.25F;
  }
  static constexpr uint32_t kDim = 32;
  std::mt19937 random;
  std::normal_distribution<float> normal;
  std::vector<float> key, query, state;
  float values[kStateColumns] = {};
  DeltaToken token;
};

TEST(DeltaRule, StepsAreThoseOfTheRule) {
  Case c(3);
  std::vector<float> next(c.state.size());
  float out[kStateColumns] = {};
  delta_step(c.state.data(), next.data(), Case::kDim, c.token, c.values, out);
  for (uint32_t j = 0; j < kStateColumns; ++j) {
    double held = 0;
    for (uint32_t i = 0; i < Case::kDim; ++i) {
      held += double{c.state[i * kStateColumns + j]} * double{c.token.decay} * double{c.key[i]};
    }
    const double delta = (double{c.values[j]} - held) * double{c.token.rate};
    double result = 0;
    for (uint32_t i = 0; i < Case::kDim; ++i) {
      const double wanted =
          double{c.state[i * kStateColumns + j]} * double{c.token.decay} + double{c.key[i]} * delta;
      EXPECT_NEAR(next[i * kStateColumns + j], wanted, 1e-6);
      result += wanted * double{c.query[i]};
    }
    EXPECT_NEAR(out[j], result * double{c.token.scale}, 1e-6);
  }
  // In place, and without an output, the state is the same.
  std::vector<float> same = c.state;
  c.token.query = nullptr;
  delta_step(same.data(), same.data(), Case::kDim, c.token, c.values, nullptr);
  EXPECT_EQ(same, next);
}

TEST(DeltaRule, WhatFadesAwayBecomesZeroBeforeItIsSubnormal) {
  Case c(4);
  std::fill(std::begin(c.values), std::end(c.values), 0.0F);
  c.token.rate = 0;
  c.token.decay = 0.5F;
  float out[kStateColumns] = {};
  for (int step = 0; step < 80; ++step) {
    delta_step(c.state.data(), c.state.data(), Case::kDim, c.token, c.values, out);
    for (const float value : c.state) {
      EXPECT_TRUE(value == 0 || std::abs(value) >= 0x1p-63F) << value;
    }
  }
  for (const float value : c.state) EXPECT_EQ(value, 0.0F);
  EXPECT_EQ(state_value(0x1p-63F), 0x1p-63F);
  EXPECT_EQ(state_value(-0x1.fffffep-64F), 0.0F);
  EXPECT_TRUE(std::isnan(state_value(NAN)));
}

}  // namespace
}  // namespace tandem::arithmetic
