// Roundings, quantization, the boundary's halves and the norms against exact computations.
#include "arithmetic/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "arithmetic/dot.h"
#include "arithmetic/hidden.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"

namespace tandem::arithmetic {
namespace {

TEST(Format, LimitsAreWhatTheirProofsSay) {
  constexpr int64_t kInt = int64_t{1} << 31;
  EXPECT_LE(int64_t{255} * 128 * kMaxRow, kInt);
  EXPECT_LT(int64_t{255} * 128 * (kMaxRow - 1) + 255 * 127, kInt);
  EXPECT_LT(int64_t{kMaxActivation} * 128 * kMaxHeadDim, kInt);
  EXPECT_LT(int64_t{4095} * kMaxActivation * kBlock, kInt);
  EXPECT_EQ(kMaxActivation, 127 * 256 + 127);
  EXPECT_LT(int64_t{kMaxActivation} * kMaxActivation * 2, kInt);
}

TEST(Format, ShiftRoundIsTheFloorOfTheHalfAboveQuotient) {
  for (int64_t x = -300; x <= 300; ++x) {
    for (unsigned shift = 0; shift < 12; ++shift) {
      const auto expected =
          static_cast<int64_t>(std::floor(static_cast<double>(x) / std::exp2(shift) + 0.5));
      EXPECT_EQ(shift_round(x, shift), expected) << x << " >> " << shift;
    }
  }
}

TEST(Format, RoundToIntTakesTiesToEven) {
  EXPECT_EQ(round_to_int(0.5F), 0);
  EXPECT_EQ(round_to_int(1.5F), 2);
  EXPECT_EQ(round_to_int(-2.5F), -2);
  EXPECT_EQ(round_to_int(32639.49F), 32639);
}

TEST(Quantize, TheLargestMagnitudeUsesFifteenBits) {
  std::mt19937 random(1);
  for (int exponent = -79; exponent < 128; ++exponent) {
    for (int i = 0; i < 200; ++i) {
      const float largest =
          std::ldexp(1.0F + static_cast<float>(random() % (1U << 23)) / (1U << 23), exponent);
      const std::vector<float> x = {largest, -largest / 2, largest / 3};
      std::vector<int16_t> q(3);
      int e = 0;
      ASSERT_TRUE(quantize(x, q, e));
      ASSERT_LE(std::abs(q[0]), kMaxActivation);
      // The exponent is the smallest that fits.
      ASSERT_GT(std::nearbyint(std::ldexp(static_cast<double>(largest), 1 - e)), kMaxActivation);
      for (size_t j = 0; j < 3; ++j) {
        ASSERT_EQ(q[j], std::nearbyint(std::ldexp(static_cast<double>(x[j]), -e)));
      }
      ASSERT_GE(e, -94);
      ASSERT_LE(e, 114);
    }
  }
}

TEST(Quantize, RoundingNeverPassesTheLargestActivation) {
  for (const float x : {32639.0F, 32639.498F, 32639.5F, 32640.0F, 32767.0F, 32768.0F}) {
    for (const int shift : {-80, 0, 50}) {
      const std::vector<float> values = {std::ldexp(x, shift), -std::ldexp(x, shift)};
      std::vector<int16_t> q(2);
      int e = 0;
      ASSERT_TRUE(quantize(values, q, e));
      EXPECT_LE(q[0], kMaxActivation);
      EXPECT_GE(q[1], -kMaxActivation);
      EXPECT_EQ(e, x < 32639.5F ? shift : shift + 1);
    }
  }
}

TEST(Quantize, TinyVectorsAreZeroAndBadOnesAreRefused) {
  std::vector<int16_t> q(2);
  int e = 0;
  EXPECT_TRUE(quantize(std::vector<float>{std::nextafter(0x1p-80F, 0.0F), 0.0F}, q, e));
  EXPECT_EQ(q, (std::vector<int16_t>{0, 0}));
  EXPECT_EQ(e, -94);
  EXPECT_TRUE(quantize(std::vector<float>{0x1p-80F, 0.0F}, q, e));
  EXPECT_EQ(q[0], 16384);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(quantize(std::vector<float>{1.0F, bad}, q, e));
    EXPECT_EQ(q, (std::vector<int16_t>{0, 0}));
  }
}

TEST(Quantize, IntegersGetTheSmallestShiftThatFits) {
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    const auto r = static_cast<int32_t>(random() >> (1 + random() % 31));
    const std::vector<int32_t> x = {r, -r, r / 2};
    std::vector<int16_t> q(3);
    const int shift = quantize_integers(x, 0, q);
    for (size_t j = 0; j < 3; ++j) {
      ASSERT_LE(std::abs(q[j]), kMaxActivation);
      ASSERT_EQ(q[j], std::floor(std::ldexp(static_cast<double>(x[j]), -shift) + 0.5));
    }
    if (shift > 0) {
      ASSERT_GT(std::floor(std::ldexp(static_cast<double>(r), 1 - shift) + 0.5), kMaxActivation);
    }
  }
}

TEST(Dot, LongestRowsStayWithinTheirBounds) {
  const std::vector<int8_t> w8(kMaxRow, 127);
  const std::vector<int16_t> x(kMaxRow, static_cast<int16_t>(kMaxActivation));
  EXPECT_EQ(dot8(w8, x), int64_t{127} * kMaxActivation * kMaxRow);
  EXPECT_LT(dot8(w8, x), int64_t{1} << 39);
  const std::vector<uint8_t> quants4(kMaxRow, 15);
  const std::vector<uint8_t> scales4(kMaxRow / kGroup, 63);
  const std::vector<uint8_t> minimums(kMaxRow / kGroup, 0);
  EXPECT_EQ(dot4({quants4, scales4, minimums}, x), int64_t{945} * kMaxActivation * kMaxRow);
  EXPECT_LT(dot4({quants4, scales4, minimums}, x), int64_t{1} << 41);
  const std::vector<uint8_t> quants6(kMaxRow, 0);
  const std::vector<uint8_t> scales6(kMaxRow / kGroup, 127);
  EXPECT_EQ(dot6({quants6, scales6}, x), int64_t{-4064} * kMaxActivation * kMaxRow);
  EXPECT_GT(dot6({quants6, scales6}, x), -(int64_t{1} << 43));
}

TEST(Dot, ScalesStayNormal) {
  for (const float row_scale : {kMinRowScale, kMaxRowScale}) {
    for (const int exponent : {-94, 114}) {
      EXPECT_TRUE(std::isnormal(row_scale * power_of_two(exponent)));
    }
  }
}

TEST(Hidden, EveryHalfSurvivesTheWayThroughBinary32) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7c00U) == 0x7c00U) continue;
    EXPECT_EQ(to_half(from_half(static_cast<uint16_t>(bits))), bits);
  }
}

TEST(Hidden, FromHalfIsExact) {
  for (uint32_t bits = 0; bits < 0x7c00U; ++bits) {
    const uint32_t exponent = bits >> 10;
    const double mantissa = bits & 0x3ffU;
    const double expected = exponent == 0
                                ? std::ldexp(mantissa, -24)
                                : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    EXPECT_EQ(from_half(static_cast<uint16_t>(bits)), expected);
    EXPECT_EQ(from_half(static_cast<uint16_t>(bits | 0x8000U)), -expected);
  }
}

// At, just below and just above the middle of any two neighbours.
TEST(Hidden, ToHalfRoundsToTheNearestTiesToEven) {
  for (uint32_t bits = 0; bits + 1 < 0x7c00U; ++bits) {
    const float low = from_half(static_cast<uint16_t>(bits));
    const float high = from_half(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;  // exact
    EXPECT_EQ(to_half(std::nextafter(middle, 0.0F)), bits);
    EXPECT_EQ(to_half(middle), bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(to_half(std::nextafter(middle, 1e9F)), bits + 1);
    EXPECT_EQ(to_half(-middle), (bits % 2 == 0 ? bits : bits + 1) | 0x8000U);
  }
  EXPECT_EQ(to_half(0x1p-60F), 0);
  EXPECT_EQ(to_half(1e-44F), 0);
}

TEST(Hidden, BoundaryKeepsElevenBitsOfTheLargest) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int exponent = -75; exponent < 125; exponent += 5) {
    std::vector<float> x(64);
    for (float& v : x) v = std::ldexp(normal(random), exponent);
    std::vector<uint16_t> half(64);
    int16_t e = 0;
    ASSERT_TRUE(to_boundary(x, half, e));
    std::vector<float> back(64);
    from_boundary(half, e, back);
    const double largest = std::bit_cast<float>(max_magnitude(x));
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_LE(std::abs(back[i] - static_cast<double>(x[i])),
                std::max(std::abs(static_cast<double>(x[i])) * 0x1p-11, largest * 0x1p-38));
    }
    // A second rounding changes nothing: the boundary format is closed.
    std::vector<uint16_t> again(64);
    int16_t again_e = 0;
    ASSERT_TRUE(to_boundary(back, again, again_e));
    std::vector<float> again_back(64);
    from_boundary(again, again_e, again_back);
    EXPECT_EQ(again_back, back);
  }
}

TEST(Norm, RmsNormFollowsItsFormula) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const int exponent : {-70, -50, -10, 0, 10, 50, 90}) {
    for (const double epsilon : {1e-6, 1e-5, 0.0}) {
      for (const uint32_t n : {1U, 16U, 64U, 1000U}) {
        std::vector<float> x(n);
        std::vector<float> weight(n, 1.0F);
        for (float& v : x) v = std::ldexp(normal(random), exponent);
        std::vector<int16_t> scratch(n);
        std::vector<float> y(n);
        ASSERT_TRUE(rms_norm(x, weight, NormConstants(n, epsilon), scratch, y));
        long double squares = 0;
        for (const float v : x) squares += static_cast<long double>(v) * v;
        const long double factor = 1.0L / std::sqrt(squares / n + epsilon);
        for (uint32_t i = 0; i < n; ++i) {
          EXPECT_NEAR(y[i], x[i] * factor, std::abs(x[i] * factor) * 1e-4L) << exponent << " " << n;
        }
      }
    }
  }
}

TEST(Norm, LayerNormFollowsItsFormula) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const int exponent : {-50, -10, 0, 10, 50, 90}) {
    for (const uint32_t n : {16U, 64U, 1000U}) {
      std::vector<float> x(n);
      const std::vector<float> weight(n, 1.0F);
      const std::vector<float> bias(n, 0.25F);
      for (float& v : x) v = std::ldexp(normal(random) + 0.5F, exponent);
      std::vector<int16_t> scratch(n);
      std::vector<float> y(n);
      ASSERT_TRUE(layer_norm(x, weight, bias, NormConstants(n, 1e-5), scratch, y));
      long double sum = 0;
      for (const float v : x) sum += v;
      const long double mean = sum / n;
      long double squares = 0;
      for (const float v : x) squares += (v - mean) * (v - mean);
      const long double factor = 1.0L / std::sqrt(squares / n + 1e-5L);
      for (uint32_t i = 0; i < n; ++i) {
        EXPECT_NEAR(y[i], (x[i] - mean) * factor + 0.25L, 1e-3L) << exponent << " " << n;
      }
    }
  }
}

TEST(Norm, OutOfRangeVectorsAreRefused) {
  std::vector<int16_t> scratch(4);
  std::vector<float> y(4);
  const std::vector<float> weight(4, 1.0F);
  const NormConstants constants(4, 1e-5);
  EXPECT_TRUE(rms_norm(std::vector<float>(4, 0x1.fp+106F), weight, constants, scratch, y));
  EXPECT_NEAR(y[0], 1.0, 1e-4);
  EXPECT_FALSE(rms_norm(std::vector<float>(4, 0x1p+108F), weight, constants, scratch, y));
  EXPECT_FALSE(layer_norm(std::vector<float>(4, 0x1p+108F), weight, weight, constants, scratch, y));
}

TEST(Norm, ZerosStayZero) {
  std::vector<int16_t> scratch(3);
  std::vector<float> y(3, 1.0F);
  for (const double epsilon : {1e-5, 0.0}) {
    ASSERT_TRUE(rms_norm(std::vector<float>(3), std::vector<float>(3, 1.0F),
                         NormConstants(3, epsilon), scratch, y));
    EXPECT_EQ(y, std::vector<float>(3));
  }
}

}  // namespace
}  // namespace tandem::arithmetic
