#include "decode/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>
#include <unordered_map>

#include "arithmetic/draw.h"
#include "arithmetic/format.h"

namespace tandem::decode {
namespace {

/// Not lround(): the contract says what happens to the last case.
uint64_t nearest(double value) {
  return static_cast<uint64_t>(value + 0.5);  // NOLINT(bugprone-incorrect-roundings)
}

constexpr double kLog2e = 0x1.71547652b82fep+0;

struct Candidate {
  float logit;
  uint32_t id;
};

/// The contract's order: greatest logit first, then lowest id.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

float to_logit(double value) {
  return static_cast<float>(std::clamp(value, -double{FLT_MAX}, double{FLT_MAX}));
}

/// Penalties and biases, each from the value before, rounded once to binary32 at the end.
std::vector<float> adjust(const SamplerParameters& parameters, const SamplerInput& input) {
  std::vector<float> logits(input.logits.begin(), input.logits.end());
  struct Count {
    bool in_history = false;
    uint32_t in_answer = 0;
  };
  std::unordered_map<uint32_t, Count> counts;
  for (size_t i = 0; i < input.history.size(); ++i) {
    Count& count = counts[input.history[i]];
    count.in_history = true;
    if (i >= input.prompt_tokens) ++count.in_answer;
  }
  for (const auto& [token, count] : counts) {
    if (token >= logits.size()) continue;
    double value = logits[token];
    value =
        value > 0 ? value / parameters.repetition_penalty : value * parameters.repetition_penalty;
    if (count.in_answer > 0) {
      value -= parameters.presence_penalty;
      value -= parameters.frequency_penalty * count.in_answer;
    }
    logits[token] = to_logit(value);
  }
  for (const auto& [token, bias] : parameters.logit_bias) {
    logits[token] = to_logit(logits[token] + bias);
  }
  return logits;
}

/// The k first candidates, in no particular order. One look at each logit: only few of them beat
/// the worst of the best so far.
std::vector<Candidate> select(std::span<const float> logits, size_t k) {
  std::vector<Candidate> best;
  best.reserve(k);
  uint32_t id = 0;
  for (; best.size() < k; ++id) best.push_back({logits[id], id});
  if (k == logits.size()) return best;
  std::make_heap(best.begin(), best.end(), before);  // the worst one on top
  float worst = best.front().logit;
  for (; id < logits.size(); ++id) {
    if (logits[id] <= worst) continue;  // an equal logit has a higher id here
    std::pop_heap(best.begin(), best.end(), before);
    best.back() = {logits[id], id};
    std::push_heap(best.begin(), best.end(), before);
    worst = best.front().logit;
  }
  return best;
}

/// Candidates in the contract's order without sorting or moving all of them: each has a bucket, of
/// 1/16 of a power of two, and only buckets that a filter's limit or the draw falls into are
/// gathered and sorted.
class Distribution {
 public:
  Distribution(std::vector<Candidate> candidates, double temperature)
      : candidates_(std::move(candidates)),
        weights_(candidates_.size()),
        bucket_of_(candidates_.size()),
        buckets_(kBuckets) {
    float greatest = candidates_.front().logit;
    for (const Candidate& candidate : candidates_) {
      greatest = std::max(greatest, candidate.logit);
    }
    const double factor = kLog2e / temperature;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const double distance = (double{greatest} - double{candidates_[i].logit}) * factor;
      // 64 is far past the distance whose weight is zero, and keeps the product within 64 bits.
      const auto fixed = distance >= 64 ? uint64_t{64} << arithmetic::kDistanceBits
                                        : nearest(distance * 4294967296.0);
      bucket_of_[i] =
          static_cast<uint16_t>(std::min(fixed, arithmetic::kZeroDistance) >> kBucketShift);
      weights_[i] = arithmetic::weight_at(fixed);
      Bucket& bucket = buckets_[bucket_of_[i]];
      bucket.sum += weights_[i];
      bucket.least = std::min(bucket.least, weights_[i]);
      ++bucket.count;
      total_ += weights_[i];
    }
  }

  /// Keeps the shortest beginning with at least `share` of the total weight.
  void keep_share(double share) {
    // In units of 2^-32, so that the comparison is one of 128-bit integers.
    const auto units = nearest(share * 4294967296.0);
    __extension__ using Wide = unsigned __int128;
    const Wide wanted = static_cast<Wide>(total_) * std::max<uint64_t>(units, 1);
    cut([&](uint64_t sum, uint64_t) { return (static_cast<Wide>(sum) << 32) >= wanted; }, true);
  }

  /// Keeps candidates of at least `share` of the greatest weight.
  void keep_above(double share) {
    const auto least = nearest(share * double{arithmetic::kFullWeight});
    cut([&](uint64_t, uint64_t weight) { return weight < least; }, false);
  }

  uint32_t draw(uint64_t random) {
    const uint64_t point = arithmetic::multiply_high(random, total_);
    uint64_t sum = 0;
    for (Bucket& bucket : buckets_) {
      if (bucket.count == 0 || sum + bucket.sum <= point) {
        sum += bucket.sum;
        continue;
      }
      gather(bucket);
      for (size_t i = 0; i < bucket.count; ++i) {
        sum += weights_[bucket.ordered[i]];
        if (sum > point) return candidates_[bucket.ordered[i]].id;
      }
    }
    return candidates_.front().id;  // not reached: point < total_
  }

 private:
  static constexpr unsigned kBucketShift = arithmetic::kDistanceBits - 4;
  static constexpr size_t kBuckets = (arithmetic::kZeroDistance >> kBucketShift) + 1;
  static_assert(kBuckets <= 65536);

  /// What is kept of the candidates within 1/16 of a power of two.
  struct Bucket {
    uint64_t sum = 0;             ///< of their weights
    uint64_t least = UINT64_MAX;  ///< of their weights, or lower
    uint32_t count = 0;
    std::vector<uint32_t> ordered;  ///< their indices, in order, once a limit fell in here; then a
                                    ///< filter may have cut its end off: the first `count` count
  };

  void gather(Bucket& bucket) {
    if (!bucket.ordered.empty()) return;
    const auto number = static_cast<uint16_t>(&bucket - buckets_.data());
    bucket.ordered.reserve(bucket.count);
    for (size_t i = 0; i < bucket_of_.size(); ++i) {
      if (bucket_of_[i] == number) bucket.ordered.push_back(static_cast<uint32_t>(i));
    }
    std::sort(bucket.ordered.begin(), bucket.ordered.end(),
              [&](uint32_t x, uint32_t y) { return before(candidates_[x], candidates_[y]); });
  }

  /// Ends the kept candidates at the first for which `ends(sum of weights up to it, its weight)`,
  /// which never turns false again along the order, holds; that one stays if `including`. The
  /// first candidate always stays.
  template <typename Ends>
  void cut(Ends&& ends, bool including) {
    uint64_t sum = 0;
    bool ended = false;
    for (Bucket& bucket : buckets_) {
      if (bucket.count == 0) continue;
      if (ended) {
        bucket.sum = 0;
        bucket.count = 0;
        continue;
      }
      if (!ends(sum + bucket.sum, bucket.least)) {
        sum += bucket.sum;
        continue;
      }
      gather(bucket);
      const uint64_t before_bucket = sum;
      for (uint32_t i = 0; i < bucket.count && !ended; ++i) {
        const uint64_t weight = weights_[bucket.ordered[i]];
        ended = ends(sum + weight, weight);
        if (ended && !including && sum > 0) {
          bucket.count = i;
          break;
        }
        sum += weight;
        if (ended) bucket.count = i + 1;
      }
      bucket.sum = sum - before_bucket;
    }
    total_ = sum;
  }

  std::vector<Candidate> candidates_;
  std::vector<uint64_t> weights_;    ///< of candidates_
  std::vector<uint16_t> bucket_of_;  ///< of candidates_
  std::vector<Bucket> buckets_;      ///< in the contract's order
  uint64_t total_ = 0;               ///< weight of the kept ones
};

Status check_range(const char* what, double value, double low, double high) {
  if (value >= low && value <= high) return {};  // not for NaN
  // Shortest form that is readable: 0.01 rather than 0.010000.
  const auto text = [](double x) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%g", x);
    return std::string(buffer);
  };
  return invalid(std::string(what) + " is " + text(value) + "; expected " + text(low) + " to " +
                 text(high));
}

}  // namespace

Status check(const SamplerParameters& parameters, uint32_t vocab) {
  TANDEM_TRY(check_range("repetition_penalty", parameters.repetition_penalty, 0.01, 100));
  TANDEM_TRY(check_range("presence_penalty", parameters.presence_penalty, -100, 100));
  TANDEM_TRY(check_range("frequency_penalty", parameters.frequency_penalty, -100, 100));
  std::vector<uint32_t> biased;
  for (const auto& [token, bias] : parameters.logit_bias) {
    if (token >= vocab) {
      return invalid("logit_bias names token " + std::to_string(token) +
                     "; the vocabulary ends at " + std::to_string(vocab - 1));
    }
    TANDEM_TRY(check_range("logit_bias", bias, -100, 100));
    biased.push_back(token);
  }
  std::sort(biased.begin(), biased.end());
  if (const auto twice = std::adjacent_find(biased.begin(), biased.end()); twice != biased.end()) {
    return invalid("logit_bias names token " + std::to_string(*twice) + " twice");
  }
  if (parameters.temperature != 0) {
    TANDEM_TRY(check_range("temperature", parameters.temperature, 0, 100));
    if (parameters.temperature < 1e-6) {
      return invalid("temperature is above 0 but below 0.000001; 0 takes the best token always");
    }
  }
  TANDEM_TRY(check_range("top_p", parameters.top_p, 0, 1));
  if (parameters.top_p == 0) return invalid("top_p is 0; expected more than 0, to 1");
  TANDEM_TRY(check_range("min_p", parameters.min_p, 0, 1));
  return {};
}

Result<uint32_t> sample(const SamplerParameters& parameters, const SamplerInput& input) {
  if (input.logits.empty() || input.logits.size() > (size_t{1} << 22)) {
    return invalid("can't choose from " + std::to_string(input.logits.size()) +
                   " logits; expected 1 to 4194304");
  }
  uint32_t greatest_bits = 0;
  for (const float logit : input.logits) {
    greatest_bits = std::max(greatest_bits, arithmetic::magnitude_bits(logit));
  }
  if (greatest_bits >= arithmetic::kInfinityBits) {
    return invalid("a logit for position " + std::to_string(input.position) +
                   " is infinite or not a number");
  }
  std::span<const float> logits = input.logits;
  std::vector<float> adjusted;
  if (parameters.repetition_penalty != 1 || parameters.presence_penalty != 0 ||
      parameters.frequency_penalty != 0 || !parameters.logit_bias.empty()) {
    adjusted = adjust(parameters, input);
    logits = adjusted;
  }
  if (parameters.temperature == 0) {
    return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const size_t k =
      parameters.top_k == 0 ? logits.size() : std::min<size_t>(parameters.top_k, logits.size());
  Distribution distribution(select(logits, k), parameters.temperature);
  if (parameters.top_p < 1) distribution.keep_share(parameters.top_p);
  if (parameters.min_p > 0) distribution.keep_above(parameters.min_p);
  return distribution.draw(arithmetic::random_at(input.seed, input.position));
}

}  // namespace tandem::decode
