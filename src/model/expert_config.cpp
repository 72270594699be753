#include "model/expert_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "arithmetic/format.h"
#include "arithmetic/router.h"
#include "model/families.h"

namespace tandem::model {
namespace {

using nlohmann::json;

// Both are in use for the same number.
constexpr std::array<std::string_view, 2> kCountKeys = {"num_experts", "num_local_experts"};

Error wrong(std::string_view key, const std::string& wanted, const json& found) {
  return invalid("config.json: '" + std::string(key) + "' must be " + wanted + ", not " +
                 found.dump().substr(0, 40));
}

// An integer from `low` to `high` at `key`; nothing where it is absent or null.
Result<std::optional<uint32_t>> integer(const json& object, std::string_view key, uint32_t low,
                                        uint32_t high) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::optional<uint32_t>();
  if (!found->is_number_integer() || found->get<double>() < low || found->get<double>() > high) {
    return wrong(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high),
                 *found);
  }
  return std::optional<uint32_t>(found->get<uint32_t>());
}

Result<uint32_t> required(const json& object, std::string_view key, uint32_t low, uint32_t high) {
  TANDEM_ASSIGN(const auto value, integer(object, key, low, high));
  if (!value) return invalid("config.json: '" + std::string(key) + "' is missing");
  return *value;
}

Result<double> positive(const json& object, std::string_view key, double fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_number() || !(found->get<double>() > 0) || found->get<double>() > 1e6) {
    return wrong(key, "a number above 0", *found);
  }
  return found->get<double>();
}

Result<uint32_t> expert_count(const json& object) {
  std::optional<uint32_t> count;
  for (const std::string_view key : kCountKeys) {
    TANDEM_ASSIGN(const auto value, integer(object, key, 0, arithmetic::kMaxExperts));
    if (value && count && *value != *count) {
      return invalid("config.json: 'num_experts' and 'num_local_experts' differ");
    }
    if (value) count = value;
  }
  if (!count) return invalid("config.json: 'num_experts' is missing");
  return *count;
}

// As transformers reads them: a layer has experts unless mlp_only_layers names it or its number,
// counted from 1, is not a multiple of decoder_sparse_step.
Status read_layers(const json& object, ModelConfig& config) {
  config.moe.layers.assign(config.layers, true);
  if (!config.family->experts->sparse_step) return {};
  TANDEM_ASSIGN(const auto step, integer(object, "decoder_sparse_step", 1, 1U << 30));
  for (uint32_t i = 0; i < config.layers; ++i) {
    config.moe.layers[i] = (i + 1) % step.value_or(1) == 0;
  }
  const auto dense = object.find("mlp_only_layers");
  if (dense == object.end() || dense->is_null()) return {};
  if (!dense->is_array()) return wrong("mlp_only_layers", "a list of layers", *dense);
  for (const json& layer : *dense) {
    if (!layer.is_number_integer() || layer.get<double>() < 0) {
      return wrong("mlp_only_layers", "a list of layers", layer);
    }
    if (layer.get<double>() < config.layers) config.moe.layers[layer.get<uint32_t>()] = false;
  }
  return {};
}

}  // namespace

bool is_expert_key(std::string_view key) {
  return std::find(kCountKeys.begin(), kCountKeys.end(), key) != kCountKeys.end();
}

bool is_mxfp4(const Family& family, std::string_view key, const json& object) {
  if (family.experts == nullptr || !family.experts->input_major) return false;
  const auto found = object.find(key);
  if (key != "quantization_config" || found == object.end() || !found->is_object()) return false;
  const auto method = found->find("quant_method");
  return method != found->end() && *method == "mxfp4";
}

Status read_experts(const json& object, ModelConfig& config) {
  const ExpertRules* rules = config.family->experts;
  if (rules == nullptr) return {};
  ExpertConfig& moe = config.moe;
  TANDEM_ASSIGN(moe.experts, expert_count(object));
  if (moe.experts == 0) return {};
  TANDEM_ASSIGN(moe.chosen, required(object, "num_experts_per_tok", 1, moe.experts));
  TANDEM_ASSIGN(moe.width, required(object, rules->width, 1, arithmetic::kMaxRow));
  if (!rules->shared_width.empty()) {
    TANDEM_ASSIGN(moe.shared_width, required(object, rules->shared_width, 1, arithmetic::kMaxRow));
  }
  const auto normalize = object.find("norm_topk_prob");
  const bool given = normalize != object.end() && !normalize->is_null();
  if (given && !normalize->is_boolean()) {
    return wrong("norm_topk_prob", "true or false", *normalize);
  }
  moe.normalize = rules->normalize == ExpertRules::Normalize::kAlways;
  if (given && moe.normalize && !normalize->get<bool>()) {
    return unsupported("config.json: 'norm_topk_prob' is false; " + config.architecture +
                       " always normalizes the weights of the chosen experts");
  }
  if (given) moe.normalize = normalize->get<bool>();
  if (rules->clamped) {
    TANDEM_ASSIGN(moe.alpha, positive(object, "swiglu_alpha", moe.alpha));
    TANDEM_ASSIGN(moe.limit, positive(object, "swiglu_limit", moe.limit));
  }
  moe.layout = rules->input_major ? ExpertLayout::kInputMajor : ExpertLayout::kSeparate;
  return read_layers(object, config);
}

void resolve_experts(ModelConfig& config, const std::function<bool(std::string_view)>& has) {
  ExpertConfig& moe = config.moe;
  const auto layer = std::find(moe.layers.begin(), moe.layers.end(), true);
  if (moe.experts == 0 || layer == moe.layers.end()) return;
  const ExpertRules& rules = *config.family->experts;
  const std::string base = config.prefix + std::string(config.family->names.layers) +
                           std::to_string(layer - moe.layers.begin()) + ".";
  const std::string experts = base + std::string(rules.experts);
  const std::string renamed = base + "mlp.experts.";
  if (rules.input_major) {
    moe.layout = has(experts + "gate_up_proj_blocks") ? ExpertLayout::kMxfp4
                 : has(experts + "0." + std::string(rules.gate) + ".weight")
                     ? ExpertLayout::kSeparate  // as GGUF files have them
                     : ExpertLayout::kInputMajor;
  } else if (has(experts + "gate_up_proj")) {
    moe.layout = ExpertLayout::kFused;
  } else if (experts != renamed && has(renamed + "gate_up_proj")) {
    moe.layout = ExpertLayout::kFused;
    moe.renamed = true;
  } else {
    moe.layout = ExpertLayout::kSeparate;
  }
}

}  // namespace tandem::model
