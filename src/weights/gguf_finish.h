// What a family's config.json has to say that no key of a GGUF file's says alone:
// GgufFamily::finish.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "weights/gguf.h"

namespace tandem::weights {

/// Each adds to `config`, which holds what the family's keys gave. Errors: kInvalid, names the key
/// that the file lacks or that has another form.
Status finish_llama(const GgufHeader& header, nlohmann::ordered_json& config);
Status finish_qwen3(const GgufHeader& header, nlohmann::ordered_json& config);
Status finish_qwen3_moe(const GgufHeader& header, nlohmann::ordered_json& config);
Status finish_smollm3(const GgufHeader& header, nlohmann::ordered_json& config);
Status finish_gpt2(const GgufHeader& header, nlohmann::ordered_json& config);
Status finish_gemma3(const GgufHeader& header, nlohmann::ordered_json& config);
Status finish_gpt_oss(const GgufHeader& header, nlohmann::ordered_json& config);
Status finish_qwen35(const GgufHeader& header, nlohmann::ordered_json& config);

}  // namespace tandem::weights
