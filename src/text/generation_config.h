// What a model folder says about ending and sampling an answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace tandem::text {

/// Suggestions of generation_config.json; a missing value is a missing suggestion.
struct GenerationConfig {
  /// Ends of an answer: eos_token_id of config.json (and its text_config) and
  /// generation_config.json and the tokenizer's own, without doubles, in that order.
  std::vector<TokenId> eos_ids;
  std::optional<TokenId> bos_id;
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<uint32_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
};

/// Reads config.json and generation_config.json of a model folder; either may be missing.
/// `tokenizer`, if given, adds its own end token. Fails on files that are not JSON objects and on
/// values of the wrong type or out of range.
Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder,
                                                const Tokenizer* tokenizer = nullptr);

}  // namespace tandem::text
