// The sampling contract: a token is a function of logits, parameters, seed and position.
#include "decode/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "arithmetic/draw.h"

namespace tandem::decode {
namespace {

uint32_t choose(const SamplerParameters& parameters, const std::vector<float>& logits,
                uint64_t seed = 0, uint64_t position = 0, std::vector<uint32_t> history = {},
                uint32_t prompt_tokens = 0) {
  SamplerInput input;
  input.logits = logits;
  input.history = history;
  input.prompt_tokens = prompt_tokens;
  input.seed = seed;
  input.position = position;
  const auto token = sample(parameters, input);
  EXPECT_TRUE(token.ok()) << token.error().message;
  return token.ok() ? *token : UINT32_MAX;
}

SamplerParameters at_temperature(double temperature) {
  SamplerParameters parameters;
  parameters.temperature = temperature;
  return parameters;
}

/// Logits as a model has them: many low ones, few high ones.
std::vector<float> realistic(size_t vocab, uint64_t salt) {
  std::vector<float> logits(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    double sum = 0;  // of uniform numbers: nearly normal
    for (uint64_t j = 0; j < 4; ++j) {
      sum += static_cast<double>(arithmetic::random_at(salt * 8 + j, i) >> 40) / (1 << 24) - 0.5;
    }
    logits[i] = static_cast<float>(5 * sum);
  }
  return logits;
}

struct Share {
  uint32_t id;
  double probability;
};

/// The plain definition in binary64: sort everything, then filter step by step.
std::vector<Share> by_definition(const SamplerParameters& parameters,
                                 const std::vector<float>& logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  if (parameters.top_k != 0 && parameters.top_k < order.size()) order.resize(parameters.top_k);
  std::vector<Share> kept;
  double sum = 0;
  for (const uint32_t id : order) {
    kept.push_back(
        {id, std::exp((double{logits[id]} - logits[order[0]]) / parameters.temperature)});
    sum += kept.back().probability;
  }
  double running = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    running += kept[i].probability;
    if (running >= parameters.top_p * sum) {
      kept.resize(i + 1);
      break;
    }
  }
  std::erase_if(kept, [&](const Share& share) { return share.probability < parameters.min_p; });
  sum = 0;
  for (const Share& share : kept) sum += share.probability;
  for (Share& share : kept) share.probability /= sum;
  return kept;
}

/// Draws many seeds and compares with the definition: nothing that it filters out may come, and
/// the rest must come as often as it should (chi-square).
void expect_distribution(const SamplerParameters& parameters, const std::vector<float>& logits) {
  constexpr int kDraws = 20'000;
  std::map<uint32_t, int> counts;
  for (int seed = 0; seed < kDraws; ++seed) {
    ++counts[choose(parameters, logits, static_cast<uint64_t>(seed), 17)];
  }
  const std::vector<Share> expected = by_definition(parameters, logits);
  double statistic = 0;
  double degrees = -1;
  double rest = 0;  // rare ones, together
  int rest_count = 0;
  int total = 0;
  for (const Share& share : expected) {
    const double wanted = share.probability * kDraws;
    const int count = counts.contains(share.id) ? counts[share.id] : 0;
    total += count;
    if (wanted < 10) {
      rest += wanted;
      rest_count += count;
      continue;
    }
    statistic += (count - wanted) * (count - wanted) / wanted;
    ++degrees;
  }
  if (rest >= 10) {
    statistic += (rest_count - rest) * (rest_count - rest) / rest;
    ++degrees;
  }
  EXPECT_EQ(total, kDraws) << "a token was drawn that the filters exclude";
  // Mean plus six standard deviations of a chi-square distribution.
  EXPECT_LT(statistic, std::max(degrees, 0.0) + 6 * std::sqrt(2 * std::max(degrees, 1.0)));
}

TEST(Greedy, TakesTheGreatestLogitAndTheLowestIdOfEqualOnes) {
  const SamplerParameters greedy;
  EXPECT_EQ(choose(greedy, {0, 3, -1, 2}), 1U);
  EXPECT_EQ(choose(greedy, {5, 7, 7, 7}), 1U);
  EXPECT_EQ(choose(greedy, {-0.0F, 0.0F}), 0U);
  EXPECT_EQ(choose(greedy, {-3e38F}), 0U);
  EXPECT_EQ(choose(greedy, {-3e38F, 3e38F}), 1U);
}

TEST(Draw, HasTheKnownAnswers) {
  // Equal logits: the first of 8 whose running sum exceeds random * 8, so the top three bits.
  const std::vector<float> equal(8, 1.5F);
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(choose(at_temperature(1), equal, 3, position),
              arithmetic::random_at(3, position) >> 61);
  }
  // Two tokens, the second one four times as probable (2 bits at temperature 1 / ln 2): the order
  // is by logit, so id 1 owns the lower four fifths.
  for (uint64_t position = 0; position < 200; ++position) {
    const double random = std::ldexp(static_cast<double>(arithmetic::random_at(9, position)), -64);
    const std::vector<float> two{0, 1.3862944F};
    EXPECT_EQ(choose(at_temperature(1), two, 9, position), random < 0.8 ? 1U : 0U);
  }
}

TEST(Draw, FollowsSoftmaxAtEveryTemperature) {
  for (const double temperature : {0.3, 0.7, 1.0, 1.7, 10.0}) {
    SCOPED_TRACE(temperature);
    expect_distribution(at_temperature(temperature), realistic(300, 1));
  }
}

TEST(Filters, KeepWhatTheirDefinitionKeeps) {
  for (const uint32_t top_k : {0U, 1U, 2U, 40U, 299U, 300U, 1000U}) {
    for (const double top_p : {0.01, 0.5, 0.95, 1.0}) {
      for (const double min_p : {0.0, 0.05, 1.0}) {
        SCOPED_TRACE(testing::Message() << top_k << " " << top_p << " " << min_p);
        SamplerParameters parameters = at_temperature(0.8);
        parameters.top_k = top_k;
        parameters.top_p = top_p;
        parameters.min_p = min_p;
        const std::vector<float> logits = realistic(300, 2);
        const auto kept = by_definition(parameters, logits);
        for (uint64_t seed = 0; seed < 300; ++seed) {
          const uint32_t token = choose(parameters, logits, seed, 5);
          EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [&](const Share& share) {
            return share.id == token;
          })) << token;
        }
      }
    }
  }
}

TEST(Filters, LeaveTheDistributionOfWhatTheyKeep) {
  SamplerParameters parameters = at_temperature(0.9);
  parameters.top_k = 40;
  expect_distribution(parameters, realistic(2000, 3));
  parameters.top_p = 0.8;
  expect_distribution(parameters, realistic(2000, 4));
  parameters.min_p = 0.1;
  expect_distribution(parameters, realistic(2000, 5));
  parameters.top_k = 0;
  parameters.min_p = 0;
  expect_distribution(parameters, realistic(2000, 6));
}

TEST(Filters, TiesAtTheEdgeKeepTheLowestIds) {
  const std::vector<float> logits{1, 2, 2, 2, 2, 0};
  SamplerParameters parameters = at_temperature(1);
  parameters.top_k = 2;
  std::map<uint32_t, int> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) ++seen[choose(parameters, logits, seed)];
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_TRUE(seen.contains(1) && seen.contains(2));
  // Half of four equal ones and two small ones: two of them hold less, three hold enough.
  parameters.top_k = 0;
  parameters.top_p = 0.5;
  seen.clear();
  for (uint64_t seed = 0; seed < 300; ++seed) ++seen[choose(parameters, logits, seed)];
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_TRUE(seen.contains(1) && seen.contains(2) && seen.contains(3));
}

TEST(Filters, FilteringByTopKOfEverythingIsNoFilter) {
  const std::vector<float> logits = realistic(5000, 7);
  SamplerParameters all = at_temperature(1.2);
  SamplerParameters k = all;
  k.top_k = 5000;
  SamplerParameters p = all;
  p.min_p = 1e-12;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const uint32_t token = choose(all, logits, seed);
    EXPECT_EQ(choose(k, logits, seed), token);
    EXPECT_EQ(choose(p, logits, seed), token);
  }
}

TEST(Purity, ATokenDependsOnItsPositionAndNotOnEarlierCalls) {
  const std::vector<float> logits = realistic(1000, 8);
  const SamplerParameters parameters = at_temperature(1);
  std::vector<uint32_t> forward;
  for (uint64_t position = 0; position < 100; ++position) {
    forward.push_back(choose(parameters, logits, 11, position));
  }
  for (uint64_t position = 100; position-- > 0;) {
    EXPECT_EQ(choose(parameters, logits, 11, position), forward[position]);
  }
  EXPECT_GT(std::set<uint32_t>(forward.begin(), forward.end()).size(), 20U);
}

TEST(Purity, OrderOfMagnitudesOfTheLogitsDoesNotMatter) {
  // The same distances from the greatest logit give the same draws.
  std::vector<float> logits = realistic(256, 9);
  for (float& logit : logits) logit = std::round(logit * 64) / 64;  // so that adding 8 is exact
  std::vector<float> moved = logits;
  for (float& logit : moved) logit += 8;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    EXPECT_EQ(choose(at_temperature(0.6), logits, seed), choose(at_temperature(0.6), moved, seed));
  }
}

TEST(Extremes, HugeDistancesAndTinyTemperaturesAreExact) {
  const float huge = std::numeric_limits<float>::max();
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(choose(at_temperature(100), {-huge, huge, 0}, seed), 1U);
    EXPECT_EQ(choose(at_temperature(1e-6), {1.0F, 1.0001F}, seed), 1U);
    EXPECT_EQ(choose(at_temperature(1), {-huge}, seed), 0U);
  }
}

TEST(Extremes, InfiniteLogitsAndNaNAreErrors) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> logits{0, bad, 1};
    SamplerInput input;
    input.logits = logits;
    input.position = 12;
    const auto token = sample({}, input);
    ASSERT_FALSE(token.ok());
    EXPECT_EQ(token.error().message, "a logit for position 12 is infinite or not a number");
  }
  EXPECT_FALSE(sample({}, {}).ok());
}

TEST(Penalties, FollowTheirDefinitions) {
  SamplerParameters parameters;
  parameters.repetition_penalty = 2;
  // Positive logits are divided, negative ones multiplied; prompt and answer both count.
  EXPECT_EQ(choose(parameters, {3, 2}, 0, 1, {0}, 1), 1U);
  EXPECT_EQ(choose(parameters, {5, 2}, 0, 1, {0}, 1), 0U);
  EXPECT_EQ(choose(parameters, {-1, -1.5F}, 0, 1, {0}, 0), 1U);

  parameters = {};
  parameters.presence_penalty = 1;
  EXPECT_EQ(choose(parameters, {2, 1.5F}, 0, 1, {0}, 0), 1U);
  EXPECT_EQ(choose(parameters, {2, 1.5F}, 0, 1, {0}, 1), 0U) << "the prompt does not count";
  EXPECT_EQ(choose(parameters, {2.6F, 1.5F}, 0, 3, {0, 0, 0}, 0), 0U) << "once, however often";

  parameters = {};
  parameters.frequency_penalty = 0.5;
  EXPECT_EQ(choose(parameters, {2.6F, 1.5F}, 0, 2, {0, 0}, 0), 0U);
  EXPECT_EQ(choose(parameters, {2.6F, 1.5F}, 0, 3, {0, 0, 0}, 0), 1U);

  parameters = {};
  parameters.logit_bias = {{1, 100.0}, {0, -100.0}};
  EXPECT_EQ(choose(parameters, {50, 0}), 1U);
}

TEST(Parameters, OutOfRangeIsRefusedByName) {
  const auto message = [](auto&& change) {
    SamplerParameters parameters;
    change(parameters);
    const Status status = check(parameters, 100);
    return status.ok() ? std::string("ok") : status.error().message;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message([](auto&) {}), "ok");
  EXPECT_EQ(message([](auto& p) { p.temperature = -1; }), "temperature is -1; expected 0 to 100");
  EXPECT_EQ(message([&](auto& p) { p.temperature = nan; }),
            "temperature is nan; expected 0 to 100");
  EXPECT_EQ(message([](auto& p) { p.temperature = 101; }), "temperature is 101; expected 0 to 100");
  EXPECT_NE(message([](auto& p) { p.temperature = 1e-9; }), "ok");
  EXPECT_EQ(message([](auto& p) { p.top_p = 1.5; }), "top_p is 1.5; expected 0 to 1");
  EXPECT_EQ(message([](auto& p) { p.top_p = 0; }), "top_p is 0; expected more than 0, to 1");
  EXPECT_EQ(message([](auto& p) { p.min_p = -0.1; }), "min_p is -0.1; expected 0 to 1");
  EXPECT_NE(message([](auto& p) { p.repetition_penalty = 0; }), "ok");
  EXPECT_NE(message([](auto& p) { p.presence_penalty = 1e9; }), "ok");
  EXPECT_NE(message([&](auto& p) { p.frequency_penalty = nan; }), "ok");
  EXPECT_EQ(message([](auto& p) {
              p.logit_bias = {{100, 1}};
            }),
            "logit_bias names token 100; the vocabulary ends at 99");
  EXPECT_EQ(message([](auto& p) {
              p.logit_bias = {{5, 1}, {5, 2}};
            }),
            "logit_bias names token 5 twice");
}

TEST(Scale, AVocabularyOf262144IsDrawnFromLikeASmallOne) {
  const std::vector<float> logits = realistic(262'144, 10);
  SamplerParameters parameters = at_temperature(0.8);
  parameters.top_p = 0.9;
  const auto kept = by_definition(parameters, logits);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const uint32_t token = choose(parameters, logits, seed, 3);
    EXPECT_TRUE(std::any_of(kept.begin(), kept.end(),
                            [&](const Share& share) { return share.id == token; }));
  }
}

}  // namespace
}  // namespace tandem::decode
