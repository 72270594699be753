// The small parts of a tokenizer.json: normalizer, pre-tokenizer, decoder, post-processor.
#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

Status read_normalizer(const nlohmann::json& json, std::vector<Normalizer>& out);
Status read_pre_tokenizer(const nlohmann::json& json, std::vector<PreTokenizer>& out);
Status read_decoder(const nlohmann::json& json, std::vector<Decoder>& out);
/// Fills prefix_ids and suffix_ids.
Status read_post_processor(const nlohmann::json& json, TokenizerSpec& spec);

}  // namespace tandem::text
