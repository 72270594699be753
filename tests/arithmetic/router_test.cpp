// Which experts are chosen, and with which weights.
#include "arithmetic/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace tandem::arithmetic {
namespace {

struct Choice {
  bool ok = false;
  std::vector<uint32_t> experts;
  std::vector<float> weights;
};

Choice choose(const std::vector<float>& logits, size_t chosen, bool normalize) {
  Choice choice;
  choice.experts.resize(chosen);
  choice.weights.resize(chosen);
  choice.ok = route(logits, normalize, choice.experts, choice.weights);
  return choice;
}

TEST(Router, ChoosesTheLargestAndOfEqualsTheFirst) {
  const Choice choice = choose({1.0F, 3.0F, 2.0F, 3.0F, -1.0F, 2.0F}, 4, true);
  EXPECT_TRUE(choice.ok);
  EXPECT_EQ(choice.experts, std::vector<uint32_t>({1, 3, 2, 5}));
  EXPECT_EQ(choice.weights[0], choice.weights[1]);
  EXPECT_EQ(choice.weights[2], choice.weights[3]);
  EXPECT_GT(choice.weights[1], choice.weights[2]);
  // Zeros of both signs are equal.
  EXPECT_EQ(choose({-0.0F, 0.0F, -0.0F}, 2, true).experts, std::vector<uint32_t>({0, 1}));
}

TEST(Router, OrderIsThatOfAStableSortForRandomLogits) {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    const size_t n = 1 + random() % 130;
    const size_t chosen = 1 + random() % n;
    std::vector<float> logits(n);
    for (float& l : logits) l = static_cast<float>(static_cast<int>(random() % 40) - 20) * 0.25F;
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
    order.resize(chosen);
    ASSERT_EQ(choose(logits, chosen, true).experts, order);
  }
}

TEST(Router, WeightsAreThoseOfASoftmaxWithinTheirErrorBound) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  double worst = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> logits(1 + random() % 200);
    for (float& l : logits) l = normal(random);
    const size_t chosen = std::min<size_t>(logits.size(), 8);
    for (const bool normalize : {false, true}) {
      const Choice choice = choose(logits, chosen, normalize);
      ASSERT_TRUE(choice.ok);
      long double sum = 0;
      if (normalize) {
        for (const uint32_t e : choice.experts)
          sum += std::exp(static_cast<long double>(logits[e]));
      } else {
        for (const float l : logits) sum += std::exp(static_cast<long double>(l));
      }
      for (size_t i = 0; i < chosen; ++i) {
        const long double exact =
            std::exp(static_cast<long double>(logits[choice.experts[i]])) / sum;
        worst = std::max(worst, static_cast<double>(std::fabs(choice.weights[i] - exact) / exact));
      }
    }
  }
  EXPECT_LT(worst, 1.1e-4);
  EXPECT_GT(worst, 1e-6);  // or nothing was compared
}

TEST(Router, ExtremesKeepToNormalNumbers) {
  const float most = std::numeric_limits<float>::max();
  const Choice far = choose({most, -most, 0.0F}, 3, false);
  EXPECT_TRUE(far.ok);
  EXPECT_EQ(far.experts, std::vector<uint32_t>({0, 2, 1}));
  EXPECT_EQ(far.weights, std::vector<float>({1.0F, 0.0F, 0.0F}));
  const Choice even = choose(std::vector<float>(kMaxExperts, 2.5F), 2, false);
  EXPECT_EQ(even.weights[0], 1.0F / kMaxExperts);
  // Just above where a weight counts as zero.
  const Choice small = choose({0.0F, -29.0F}, 2, true);
  EXPECT_GT(small.weights[1], 0.0F);
  EXPECT_EQ(choose({0.0F, -29.2F}, 2, true).weights[1], 0.0F);
}

TEST(Router, WhatIsNotANumberIsSaid) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const Choice choice = choose({1.0F, bad, 2.0F}, 2, true);
    EXPECT_FALSE(choice.ok);
    EXPECT_EQ(choice.experts, std::vector<uint32_t>({0, 1}));
    EXPECT_EQ(choice.weights, std::vector<float>({0.0F, 0.0F}));
  }
}

TEST(Router, ASumIsInTheOrderOfTheRows) {
  const float a = 1e8F;
  const float b = 1.0F;
  const float c = -1e8F;
  const float* forward[] = {&a, &b, &c};
  const float* other[] = {&a, &c, &b};
  const std::vector<float> weights(3, 1.0F);
  float out = 7.0F;
  weighted_sum(forward, weights, {&out, 1});
  EXPECT_EQ(out, 0.0F);
  weighted_sum(other, weights, {&out, 1});
  EXPECT_EQ(out, 1.0F);
}

}  // namespace
}  // namespace tandem::arithmetic
