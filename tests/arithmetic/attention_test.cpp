// Attention against long double, at the longest context too.
#include "arithmetic/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tandem::arithmetic {
namespace {

struct Memory {
  size_t dim;
  std::vector<int16_t> keys;
  std::vector<int16_t> values;
  std::vector<int> key_exponents;
  std::vector<int> value_exponents;

  explicit Memory(size_t positions, size_t width)
      : dim(width),
        keys(positions * width),
        values(positions * width),
        key_exponents(positions, -15),
        value_exponents(positions, -15) {}
};

std::vector<float> run(const Memory& memory, const Vector16& query, double scale,
                       uint32_t first = 0, int32_t sink = kNoSink) {
  const size_t positions = memory.key_exponents.size();
  std::vector<Vector16> keys(positions);
  std::vector<Vector16> values(positions);
  for (size_t j = 0; j < positions; ++j) {
    keys[j] = {{&memory.keys[j * memory.dim], memory.dim}, memory.key_exponents[j]};
    values[j] = {{&memory.values[j * memory.dim], memory.dim}, memory.value_exponents[j]};
  }
  std::vector<float> out(memory.dim);
  attention({query, keys, values, first, score_constant(scale), sink}, out);
  return out;
}

// softmax(scores and the sink) . values of the integer inputs, in long double.
std::vector<long double> exact(const Memory& memory, const Vector16& query, double scale,
                               long double sink = -1e300L) {
  const size_t positions = memory.key_exponents.size();
  std::vector<long double> scores(positions);
  long double largest = sink;
  for (size_t j = 0; j < positions; ++j) {
    long double sum = 0;
    for (size_t c = 0; c < memory.dim; ++c) {
      sum += static_cast<long double>(query.values[c]) * memory.keys[j * memory.dim + c];
    }
    scores[j] = std::ldexp(sum, query.exponent + memory.key_exponents[j]) * scale;
    largest = std::max(largest, scores[j]);
  }
  std::vector<long double> out(memory.dim);
  long double denominator = std::exp(sink - largest);
  for (size_t j = 0; j < positions; ++j) {
    const long double weight = std::exp(scores[j] - largest);
    denominator += weight;
    for (size_t c = 0; c < memory.dim; ++c) {
      out[c] += weight * std::ldexp(static_cast<long double>(memory.values[j * memory.dim + c]),
                                    memory.value_exponents[j]);
    }
  }
  for (long double& v : out) v /= denominator;
  return out;
}

TEST(Attention, FollowsTheSoftmax) {
  std::mt19937 random(1);
  for (const size_t positions : {size_t{1}, size_t{2}, size_t{17}, size_t{300}}) {
    for (const uint32_t first : {0U, 5U}) {
      Memory memory(positions, 32);
      std::vector<int16_t> query(32);
      for (int16_t& v : query) v = static_cast<int16_t>(random() % 60000 - 30000);
      for (int16_t& v : memory.keys) v = static_cast<int16_t>(random() % 60000 - 30000);
      for (int16_t& v : memory.values) v = static_cast<int16_t>(random() % 60000 - 30000);
      const Vector16 q{query, -13};
      const std::vector<float> out = run(memory, q, 0.25, first);
      const std::vector<long double> expected = exact(memory, q, 0.25);
      for (size_t c = 0; c < 32; ++c) EXPECT_NEAR(out[c], expected[c], 1e-4L) << positions;
    }
  }
}

// One position with a score far above 262,143 equal ones, which together hold as much mass: what
// the shifts lose of the tail is below 2^-20 of all.
TEST(Attention, ASinkDoesNotPushALongFlatTailToZero) {
  constexpr size_t kPositions = kMaxPositions;
  for (const double gap : {0.0, 6.0, 12.0, 12.4766, 15.0, 16.2}) {
    Memory memory(kPositions, 2);
    for (size_t j = 0; j < kPositions; ++j) {
      memory.keys[j * 2] = j == 0 ? 16384 : 0;
      memory.values[j * 2] = j == 0 ? 0 : 32000;
      memory.values[j * 2 + 1] = j == 0 ? 32000 : 0;
    }
    const std::vector<int16_t> query = {16384, 0};
    const Vector16 q{query, -14};
    const std::vector<float> out = run(memory, q, gap * 2);
    const std::vector<long double> expected = exact(memory, q, gap * 2);
    const long double unit = 32000.0L / 32768;
    // The exponential itself is off by up to 4.1e-5 of a weight: compare what is beyond that.
    EXPECT_NEAR(out[0] / unit, expected[0] / unit, 4.5e-5L) << gap;
    EXPECT_NEAR((out[0] + out[1]) / unit, 1.0L, 0x1p-20L) << gap;
  }
}

// Weights of one flat tail at every depth: the sums of both channels stay one.
TEST(Attention, LosesLessThanItsBoundAtEveryDepthOfTheTail) {
  constexpr size_t kPositions = kMaxPositions;
  Memory memory(kPositions, 2);
  for (size_t j = 0; j < kPositions; ++j) {
    memory.keys[j * 2] = j == 0 ? 16384 : 0;
    memory.values[j * 2] = j == 0 ? 0 : 32000;
    memory.values[j * 2 + 1] = j == 0 ? 32000 : 0;
  }
  const std::vector<int16_t> query = {16384, 0};
  for (int step = 0; step < 18; ++step) {
    const double gap = 1.0 + 2.17 * step;
    const std::vector<float> out = run(memory, {query, -14}, gap * 2);
    EXPECT_NEAR((out[0] + out[1]) * 32768.0L / 32000, 1.0L, 0x1p-20L) << gap;
  }
}

TEST(Attention, ALearnedSinkTakesItsShareOfTheSoftmax) {
  std::mt19937 random(2);
  Memory memory(100, 32);
  std::vector<int16_t> query(32);
  for (int16_t& v : query) v = static_cast<int16_t>(random() % 60000 - 30000);
  for (int16_t& v : memory.keys) v = static_cast<int16_t>(random() % 60000 - 30000);
  for (int16_t& v : memory.values) v = static_cast<int16_t>(random() % 60000 - 30000);
  const Vector16 q{query, -15};
  // The scores reach from about -2 to 2.
  for (const float logit : {-200.0F, -3.5F, 0.0F, 1.75F, 6.0F, 12.25F, 20.0F}) {
    const std::vector<float> out = run(memory, q, 0.25, 0, sink_score(logit));
    const std::vector<long double> expected = exact(memory, q, 0.25, logit);
    for (size_t c = 0; c < 32; ++c) {
      // 5.1e-5 for each exponential, and the denominator's.
      EXPECT_NEAR(out[c], expected[c], 1.1e-4L * std::exp(std::min(0.0F, 6 - logit))) << logit;
    }
  }
}

// The largest magnitude that a sink leaves is finite and small, where its shift is at its bound and
// beyond, and a head without a sink is none the wiser.
TEST(Attention, ASinkFarAboveAllScoresLeavesNothing) {
  for (const int exponent : {-94, 0, 100}) {
    Memory memory(40, 2);
    for (int16_t& v : memory.values) v = static_cast<int16_t>(kMaxActivation);
    for (int& e : memory.value_exponents) e = exponent;
    const std::vector<int16_t> query = {0, 0};
    const std::vector<float> alone = run(memory, {query, 0}, 1.0);
    for (const int depth : {0, 40, 100, 190, 260, 5000, 16383}) {
      const std::vector<float> out = run(memory, {query, 0}, 1.0, 0, depth << 16);
      for (size_t c = 0; c < 2; ++c) {
        EXPECT_NEAR(out[c], std::ldexp(alone[c] * (depth == 0 ? 40.0F / 41 : 40.0F), -depth),
                    std::max(0x1p-79F, std::ldexp(alone[c], -depth - 9)))
            << exponent << " " << depth;
      }
    }
    EXPECT_EQ(run(memory, {query, 0}, 1.0, 0, -(1 << 30)), alone);
  }
}

TEST(Attention, ASinksLogitIsRoundedAndClamped) {
  EXPECT_EQ(sink_score(0.0F), 0);
  EXPECT_EQ(sink_score(1.0F), 94548);
  EXPECT_EQ(sink_score(-1.0F), -94548);
  EXPECT_EQ(sink_score(1e30F), 1 << 30);
  EXPECT_EQ(sink_score(-1e30F), -(1 << 30));
  EXPECT_EQ(sink_score(std::numeric_limits<float>::quiet_NaN()), -(1 << 30));
}

TEST(Attention, TheSmallestAndLargestValuesKeepTheirScale) {
  for (const int exponent : {-94, -60, 0, 60, 112}) {
    Memory memory(3, 2);
    for (int16_t& v : memory.values) v = 16384;
    for (int& e : memory.value_exponents) e = exponent;
    const std::vector<int16_t> query = {0, 0};
    const std::vector<float> out = run(memory, {query, 0}, 1.0);
    for (const float v : out) EXPECT_NEAR(v / std::ldexp(16384.0F, exponent), 1.0F, 1e-5F);
  }
}

TEST(Attention, ScoresAreClampedNotWrapped) {
  const std::vector<int16_t> large(512, static_cast<int16_t>(kMaxActivation));
  const std::vector<int16_t> negative(512, static_cast<int16_t>(-kMaxActivation));
  EXPECT_EQ(score({large, 114}, {large, 114}, score_constant(1.0)), 1 << 30);
  EXPECT_EQ(score({large, 114}, {negative, 114}, score_constant(1.0)), -(1 << 30));
  EXPECT_EQ(score({large, -94}, {large, -94}, score_constant(1.0)), 0);
}

}  // namespace
}  // namespace tandem::arithmetic
