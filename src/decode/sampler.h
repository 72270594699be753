// Which token comes next: a pure function of the logits, the parameters, the seed and the position.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem::decode {

/// How to choose a token. The steps run in the order of the members.
struct SamplerParameters {
  /// Every token of the history: logit / p if it is positive, else logit * p (Keskar and others,
  /// "CTRL", 2019, in the form of transformers). 1 changes nothing. 0.01 to 100.
  double repetition_penalty = 1;
  /// Subtracted from the logit of every token of the answer, and once more for each time that it
  /// stands there (OpenAI's API). 0 changes nothing. -100 to 100.
  double presence_penalty = 0;
  double frequency_penalty = 0;
  /// Added to logits: pairs of a token and -100 to 100. A token may stand there once.
  std::vector<std::pair<uint32_t, double>> logit_bias;
  /// 0 takes the greatest logit (the lowest id of several). Otherwise 0.000001 to 100.
  double temperature = 0;
  /// Keep the k greatest logits; 0 keeps all.
  uint32_t top_k = 0;
  /// Keep the most probable tokens until they hold this share of what is left. Above 0, to 1.
  double top_p = 1;
  /// Keep tokens with at least this share of the most probable one's probability. 0 to 1.
  double min_p = 0;
};

/// Error kInvalid names the parameter, its value and its range. `vocab` checks logit_bias.
Status check(const SamplerParameters& parameters, uint32_t vocab);

/// What a token is chosen from. `position` is the index of the token to be chosen, so it equals the
/// number of tokens before it.
struct SamplerInput {
  std::span<const float> logits;      ///< [vocab], at most 2^22
  std::span<const uint32_t> history;  ///< all tokens before it, prompt and answer
  uint32_t prompt_tokens = 0;         ///< how many of them are the prompt
  uint64_t seed = 0;
  uint64_t position = 0;
};

/// The token, the same on every machine.
///
/// Candidates are ordered by logit, greatest first, equal logits by id. A candidate's distance from
/// the first is d = (greatest - logit) * (log2 e / temperature), computed in binary64 by one
/// subtraction, one division and one product, each rounded once; its weight is
/// weight_at(floor(d * 2^32 + 1/2)), an integer (arithmetic/draw.h). Filters compare integer sums
/// of weights; the first candidate always stays. The candidate drawn is the first whose running sum
/// exceeds multiply_high(random_at(seed, position), sum of all).
///
/// `parameters` must have passed check(). Error kInvalid: a logit that is infinite or not a number.
Result<uint32_t> sample(const SamplerParameters& parameters, const SamplerInput& input);

}  // namespace tandem::decode
