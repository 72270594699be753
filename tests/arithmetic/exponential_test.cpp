// Exponentials, reciprocals and roots against long double, exhaustively where the domain is small.
#include "arithmetic/exponential.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "arithmetic/activation.h"

namespace tandem::arithmetic {
namespace {

TEST(Exponential, EveryFractionIsWithinItsErrorBound) {
  long double worst = 0;
  long double squares = 0;
  uint32_t last = 65537;
  for (uint32_t x = 0; x < 65536; ++x) {
    const uint32_t y = exp2_fraction(x);
    const long double exact = 65536.0L * std::exp2(-static_cast<long double>(x) / 65536.0L);
    const long double error = std::abs((y - exact) / exact);
    worst = std::max(worst, error);
    squares += error * error;
    // Not monotone: a step up by one unit now and then.
    EXPECT_LE(y, last + 1) << x;
    EXPECT_GE(y, 32768U);
    last = y;
  }
  EXPECT_EQ(exp2_fraction(0), 65536U);
  EXPECT_LT(worst, 5.1e-5L);
  EXPECT_LT(std::sqrt(squares / 65536), 1.1e-5L);
}

TEST(Exponential, NoStepOfAFractionLeaves32Bits) {
  for (uint64_t x = 0; x < 65536; ++x) {
    const uint64_t c2 = 56773 - ((x * 30743 + (1U << 17)) >> 18);
    const uint64_t c1 = 62906 - ((x * c2 + (1U << 17)) >> 18);
    const uint64_t c0 = 45426 - ((x * c1 + (1U << 17)) >> 18);
    for (const uint64_t c : {uint64_t{30743}, c2, c1, c0}) {
      EXPECT_LT(x * c + (1U << 17), uint64_t{1} << 32);
    }
    EXPECT_EQ(exp2_fraction(static_cast<uint32_t>(x)), 65536 - ((x * c0 + (1U << 15)) >> 16));
  }
}

TEST(Exponential, ReciprocalsAreWithinTheirErrorBound) {
  std::mt19937_64 random(1);
  const auto check = [](uint64_t d) {
    const Scaled r = reciprocal(d);
    ASSERT_GE(r.mantissa, 1U << 23) << d;
    ASSERT_LE(r.mantissa, 1U << 24) << d;
    const long double product =
        std::ldexp(static_cast<long double>(r.mantissa), r.exponent) * static_cast<long double>(d);
    ASSERT_LT(std::abs(product - 1.0L), 0x1p-22L) << d;
  };
  for (uint64_t d = 1; d < 100000; ++d) check(d);
  for (unsigned bit = 0; bit < 64; ++bit) {
    const uint64_t power = uint64_t{1} << bit;
    for (uint64_t near = power > 3 ? power - 3 : 1; near <= power + 3 && near != 0; ++near) {
      check(near);
    }
  }
  check(std::numeric_limits<uint64_t>::max());
  for (int i = 0; i < 200000; ++i) check((random() >> (random() % 63)) | 1U);
}

TEST(Exponential, InverseSquareRootIsTheLargestThatItsDefinitionAllows) {
  std::mt19937_64 random(2);
  const auto check = [](uint32_t bits) {
    const float v = std::bit_cast<float>(bits);
    const Scaled r = inverse_square_root(v);
    int exponent = 0;
    const float fraction = std::frexp(v, &exponent);  // [0.5, 1)
    auto m = static_cast<uint64_t>(std::ldexp(fraction, 24));
    exponent -= 24;
    if (exponent % 2 != 0) {
      m *= 2;
      exponent -= 1;
    }
    const uint64_t limit = uint64_t{1} << 62;
    const uint64_t root = r.mantissa;
    ASSERT_LE(root * root * m, limit) << v;
    ASSERT_GT((root + 1) * (root + 1) * m, limit) << v;
    ASSERT_EQ(r.exponent, -31 - exponent / 2);
    const long double value = std::ldexp(static_cast<long double>(r.mantissa), r.exponent);
    ASSERT_LT(std::abs(value * std::sqrt(static_cast<long double>(v)) - 1.0L), 0x1p-18L) << v;
  };
  for (uint32_t exponent = 1; exponent < 255; ++exponent) {
    for (const uint32_t mantissa : {0U, 1U, 0x400000U, 0x7fffffU}) check(exponent << 23 | mantissa);
    for (int i = 0; i < 300; ++i) {
      check(exponent << 23 | (static_cast<uint32_t>(random()) & 0x7fffffU));
    }
  }
}

TEST(Exponential, LogisticIsWithinItsErrorBoundEverywhere) {
  long double worst = 0;
  const auto check = [&worst](float x) {
    const long double value = logistic_f32(x);
    const long double exact = 1.0L / (1.0L + std::exp(-static_cast<long double>(x)));
    const long double error = std::abs(value / exact - 1.0L);
    worst = std::max(worst, error);
    ASSERT_LE(value, 1.0L);
    ASSERT_GT(value, 0.0L);
  };
  // Below -44 the power of two stops falling: at most 2^-64 there.
  for (int i = -44000; i <= 60000; ++i) check(static_cast<float>(i) * 0.001F);
  for (int e = -40; e < 3; ++e) {
    for (int i = 0; i < 100; ++i) {
      const float x = std::ldexp(1.0F + static_cast<float>(i) / 100.0F, e);
      check(x);
      check(-x);
    }
  }
  EXPECT_LT(worst, std::exp2(-13.6L));
  EXPECT_EQ(logistic_f32(0.0F), 0.5F);
  EXPECT_EQ(logistic_f32(1e30F), 1.0F);
  EXPECT_LE(logistic_f32(-1e30F), 0x1p-63F);
}

TEST(Exponential, LogisticOfWhatIsNotANumberIsDefined) {
  for (const float x :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const Scaled s = logistic(x);
    EXPECT_LE(s.mantissa, 32768U);
    EXPECT_GE(s.exponent, -15 - 64);
  }
}

// logistic(x) + logistic(-x) = 1 up to the roundings.
TEST(Exponential, LogisticIsSymmetric) {
  for (int i = 0; i <= 20000; ++i) {
    const float x = static_cast<float>(i) * 0.001F;
    EXPECT_NEAR(logistic_f32(x) + logistic_f32(-x), 1.0F, 0x1p-13F) << x;
  }
}

TEST(Activation, FunctionsFollowTheirFormulas) {
  for (int i = -20000; i <= 20000; ++i) {
    const float x = static_cast<float>(i) * 0.001F;
    const double silu = x / (1.0 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(gated_silu(x, 2.0F), 2.0 * silu, 2e-4 * std::abs(silu) + 1e-12) << x;
    const double cubic = x + 0.044715 * std::pow(static_cast<double>(x), 3);
    const double gelu = x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / 3.14159265358979) * cubic));
    // A relative error of the argument of 2^-22 is one of |argument| 2^-22 in the exponential.
    if (x < -4) continue;
    EXPECT_NEAR(gelu_tanh(x), gelu, 2e-4 * std::abs(gelu) + 1e-12) << x;
  }
}

}  // namespace
}  // namespace tandem::arithmetic
