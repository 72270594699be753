// The random number of a position and the weight of a distance, as the contract defines them.
#include "arithmetic/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tandem::arithmetic {
namespace {

TEST(RandomAt, HasTheKnownAnswers) {
  // Computed independently, with arbitrary-precision integers.
  EXPECT_EQ(random_at(0, 0), 0xa706dd2f4d197e6fU);
  EXPECT_EQ(random_at(0, 1), 0xb382a305f4414f5eU);
  EXPECT_EQ(random_at(1, 0), 0x5e41ab087439611eU);
  EXPECT_EQ(random_at(42, 1000), 0xb1fc8c824d524899U);
  EXPECT_EQ(random_at(UINT64_MAX, UINT32_MAX), 0xc65298c82e2d83dcU);
  // The first output of SplitMix64 with seed 0, as its authors publish it.
  EXPECT_EQ(mix64(0x9e3779b97f4a7c15U), 0xe220a8397b1dcdafU);
}

TEST(RandomAt, NeighbouringSeedsAndPositionsShareNothing) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    for (uint64_t position = 0; position < 300; ++position) {
      seen.insert(random_at(seed, position));
    }
  }
  EXPECT_EQ(seen.size(), 90'000U);
  // A seed moved by the step between positions is no shifted copy.
  EXPECT_NE(random_at(0x9e3779b97f4a7c15U, 0), random_at(0, 1));
}

TEST(RandomAt, EveryBitIsOneHalfOfTheTime) {
  constexpr int kDraws = 100'000;
  int ones[64] = {};
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t value = random_at(7, static_cast<uint64_t>(i));
    for (int bit = 0; bit < 64; ++bit) ones[bit] += static_cast<int>(value >> bit & 1U);
  }
  for (int bit = 0; bit < 64; ++bit) {
    // Six standard deviations: a sound generator fails once in eight million runs of this test.
    EXPECT_NEAR(ones[bit], kDraws / 2.0, 6 * std::sqrt(kDraws) / 2) << "bit " << bit;
  }
}

TEST(WeightAt, IsTheRoundedPowerOfTwo) {
  uint64_t worst = 0;
  for (uint64_t i = 0; i < 2'000'000; ++i) {
    const uint64_t distance = mix64(i) % kZeroDistance;
    const double exact =
        std::ldexp(std::exp2(-std::ldexp(static_cast<double>(distance), -32)), kWeightBits);
    const double error = std::fabs(static_cast<double>(weight_at(distance)) - exact);
    // Half a unit from rounding, the rest from the series (2^-49 of 2^40) and from double itself.
    ASSERT_LT(error, 0.51) << distance;
    if (error > 0.5005) ++worst;
  }
  EXPECT_LT(worst, 1000U);
}

TEST(WeightAt, HasTheKnownAnswers) {
  EXPECT_EQ(weight_at(0), kFullWeight);
  EXPECT_EQ(weight_at(uint64_t{1} << 32), kFullWeight / 2);
  EXPECT_EQ(weight_at(uint64_t{1} << 31), 777472127994U);  // 2^39.5 = 777472127993.8
  EXPECT_EQ(weight_at(uint64_t{40} << 32), 1U);
  EXPECT_EQ(weight_at(kZeroDistance - 1), 1U);
  EXPECT_EQ(weight_at(kZeroDistance), 0U);
  EXPECT_EQ(weight_at(UINT64_MAX), 0U);
}

TEST(WeightAt, NeverRises) {
  for (uint64_t start = 0; start < kZeroDistance; start += (uint64_t{1} << 32) / 7) {
    uint64_t before = weight_at(start);
    for (uint64_t step = 1; step < 2000; ++step) {
      const uint64_t weight = weight_at(start + step * 8191);
      ASSERT_LE(weight, before) << start << " " << step;
      before = weight;
    }
  }
  // Where the table's entry changes, too.
  for (uint64_t entry = 1; entry < 256 * 4; ++entry) {
    ASSERT_LE(weight_at(entry << 24), weight_at((entry << 24) - 1)) << entry;
  }
}

}  // namespace
}  // namespace tandem::arithmetic
