#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "arithmetic/format.h"
#include "model/expert_config.h"
#include "model/families.h"
#include "model/rope_config.h"

namespace tandem::model {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfig = size_t{1} << 20;
constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxVocab = 1U << 22;

std::string key_name(std::string_view text) {
  return "'" + std::string(text) + "'";
}

// A count at `key`: an integer from 1 to `limit`, or `fallback` (if not 0) where it is absent or
// null.
Result<uint32_t> count(const json& object, std::string_view key, uint32_t limit,
                       uint32_t fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    if (fallback != 0) return fallback;
    return invalid("config.json: " + key_name(key) + " is missing");
  }
  if (!found->is_number_integer() || found->get<double>() < 1 ||
      found->get<double>() > static_cast<double>(limit)) {
    return invalid("config.json: " + key_name(key) + " must be an integer from 1 to " +
                   std::to_string(limit) + ", not " + found->dump().substr(0, 40));
  }
  return found->get<uint32_t>();
}

Result<bool> flag(const json& object, std::string_view key, bool fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) {
    return invalid("config.json: " + key_name(key) + " must be true or false, not " +
                   found->dump().substr(0, 40));
  }
  return found->get<bool>();
}

// Keys that change a forward pass in a way that no family of the table has. Each must be absent,
// null or the value that changes nothing.
Status refuse_unknown_arithmetic(const json& object, const Family& family) {
  struct Neutral {
    std::string_view key;
    json value;
  };
  static const std::vector<Neutral> kNeutral = {
      {"quantization_config", nullptr},
      {"partial_rotary_factor", 1.0},
      {"attn_logit_softcapping", nullptr},
      {"final_logit_softcapping", nullptr},
      {"logit_scale", 1.0},
      {"logits_scaling", 1.0},
      {"embedding_multiplier", 1.0},
      {"residual_multiplier", 1.0},
      {"attention_multiplier", nullptr},
      {"query_pre_attn_scalar", nullptr},
      {"clip_qkv", nullptr},
      {"scale_attn_by_inverse_layer_idx", false},
      {"scale_attn_weights", true},
      {"add_cross_attention", false},
      {"is_encoder_decoder", false},
      {"num_experts", 0},
      {"num_local_experts", 0},
      {"n_routed_experts", 0},
      {"no_rope_layers", nullptr},
      {"alibi", false},
      {"attention_sinks", false},
      {"n_shared_experts", 0},
      {"first_k_dense_replace", 0},
      {"routed_scaling_factor", 1.0},
      {"scoring_func", "softmax"},
      {"topk_method", "greedy"},
  };
  for (const Neutral& neutral : kNeutral) {
    if (family.experts != nullptr && is_expert_key(neutral.key)) continue;
    if (is_mxfp4(family, neutral.key, object)) continue;
    const auto found = object.find(neutral.key);
    if (found == object.end() || found->is_null() || *found == neutral.value) continue;
    return unsupported("config.json: " + key_name(neutral.key) + " is " +
                       found->dump().substr(0, 60) + "; Tandem does not compute that yet");
  }
  return {};
}

Result<const Family*> read_family(const json& object) {
  const auto found = object.find("architectures");
  if (found == object.end() || !found->is_array() || found->empty() ||
      !found->front().is_string()) {
    return invalid("config.json: 'architectures' must be a list that begins with a name");
  }
  const auto name = found->front().get<std::string>();
  const Family* family = find_family(name);
  if (family != nullptr) return family;
  std::string known;
  for (const Family& entry : families()) {
    known += known.empty() ? "" : ", ";
    known += entry.architecture;
  }
  return unsupported("config.json: architecture " + key_name(name.substr(0, 80)) +
                     " is not known; known are " + known);
}

Status read_activation(const json& object, const Family& family) {
  const auto found = object.find(family.keys.activation);
  if (found == object.end() || found->is_null()) return {};
  if (found->is_string() && found->get_ref<const std::string&>() == family.activation) return {};
  // gelu_pytorch_tanh is another name of the same function.
  if (found->is_string() && family.mlp == MlpKind::kGelu &&
      found->get_ref<const std::string&>() == "gelu_pytorch_tanh") {
    return {};
  }
  return unsupported("config.json: " + key_name(family.keys.activation) + " is " +
                     found->dump().substr(0, 40) + "; for " + std::string(family.architecture) +
                     " Tandem computes " + key_name(family.activation));
}

Status read_sizes(const json& object, ModelConfig& config) {
  const Family& family = *config.family;
  const ConfigKeys& keys = family.keys;
  TANDEM_ASSIGN(config.layers, count(object, keys.layers, kMaxLayers, 0));
  TANDEM_ASSIGN(config.hidden_size, count(object, keys.hidden_size, arithmetic::kMaxRow, 0));
  const uint32_t wide = family.mlp == MlpKind::kGelu ? 4 * config.hidden_size : 0;
  TANDEM_ASSIGN(config.intermediate_size,
                count(object, keys.intermediate_size, arithmetic::kMaxRow, wide));
  if (config.intermediate_size > arithmetic::kMaxRow) {
    return unsupported("config.json: an MLP of width " + std::to_string(config.intermediate_size) +
                       " is wider than " + std::to_string(arithmetic::kMaxRow));
  }
  TANDEM_ASSIGN(config.heads, count(object, keys.heads, 4096, 0));
  config.kv_heads = config.heads;
  if (!keys.kv_heads.empty()) {
    TANDEM_ASSIGN(config.kv_heads, count(object, keys.kv_heads, 4096, config.heads));
  }
  if (config.heads % config.kv_heads != 0) {
    return invalid("config.json: " + std::to_string(config.heads) + " query heads can't share " +
                   std::to_string(config.kv_heads) + " key/value heads evenly");
  }
  uint32_t head_dim = config.hidden_size / config.heads;
  const bool has_head_dim = !keys.head_dim.empty() && object.contains(keys.head_dim) &&
                            !object[std::string(keys.head_dim)].is_null();
  if (has_head_dim) {
    TANDEM_ASSIGN(head_dim, count(object, keys.head_dim, arithmetic::kMaxHeadDim, 0));
  } else if (config.hidden_size % config.heads != 0 || head_dim > arithmetic::kMaxHeadDim) {
    return invalid("config.json: a hidden size of " + std::to_string(config.hidden_size) +
                   " does not divide into " + std::to_string(config.heads) + " heads of at most " +
                   std::to_string(arithmetic::kMaxHeadDim));
  }
  config.head_dim = head_dim;
  if (uint64_t{config.heads} * head_dim > arithmetic::kMaxRow) {
    return unsupported("config.json: " + std::to_string(config.heads) + " heads of " +
                       std::to_string(head_dim) + " are wider than " +
                       std::to_string(arithmetic::kMaxRow));
  }
  if (family.rotary && head_dim % 2 != 0) {
    return invalid("config.json: rotary heads need an even head_dim, not " +
                   std::to_string(head_dim));
  }
  TANDEM_ASSIGN(config.vocab, count(object, "vocab_size", kMaxVocab, 0));
  TANDEM_ASSIGN(config.context, count(object, keys.context, 1U << 30, 0));
  const auto eps = object.find(keys.norm_eps);
  if (eps != object.end() && !eps->is_null()) {
    if (!eps->is_number() || !(eps->get<double>() >= 0) || eps->get<double>() > 1) {
      return invalid("config.json: " + key_name(keys.norm_eps) + " must be a number from 0 to 1");
    }
    config.norm_eps = eps->get<double>();
  } else {
    config.norm_eps = family.default_eps != 0           ? family.default_eps
                      : family.norm == NormKind::kLayer ? 1e-5
                                                        : 1e-6;
  }
  return {};
}

Status read_biases(const json& object, ModelConfig& config) {
  TANDEM_ASSIGN(const bool attention,
                flag(object, "attention_bias", config.family->biased_by_default));
  TANDEM_ASSIGN(const bool mlp, flag(object, "mlp_bias", false));
  switch (config.family->bias) {
    case BiasRule::kNone:
    case BiasRule::kQueryKeyValue:
      if (attention || mlp) {
        return unsupported("config.json: attention_bias or mlp_bias is true; " +
                           config.architecture + " has no such bias in Tandem");
      }
      config.attention_bias = config.family->bias == BiasRule::kQueryKeyValue;
      return {};
    case BiasRule::kConfig:
      config.attention_bias = config.output_bias = attention;
      config.mlp_bias = mlp;
      return {};
    case BiasRule::kAll:
      config.attention_bias = config.output_bias = config.mlp_bias = true;
      return {};
  }
  return {};
}

Status read_windows(const json& object, ModelConfig& config) {
  config.window.assign(config.layers, 0);
  const auto rule = config.family->window;
  if (rule == Family::Window::kNone) return {};
  TANDEM_ASSIGN(const bool opted_in, flag(object, "use_sliding_window", false));
  const bool opt_in = rule == Family::Window::kOptIn || rule == Family::Window::kOptInAll;
  if (opt_in && !opted_in) return {};
  const auto given = object.find("sliding_window");
  if (given != object.end() && given->is_null()) return {};
  if (given == object.end() && rule == Family::Window::kIfGiven) return {};
  const uint32_t usual = rule == Family::Window::kAlternating ? 128 : 4096;
  TANDEM_ASSIGN(const uint32_t window, count(object, "sliding_window", 1U << 30, usual));
  const auto types = object.find("layer_types");
  if (types != object.end() && types->is_array()) {
    if (types->size() != config.layers) {
      return invalid("config.json: 'layer_types' names " + std::to_string(types->size()) +
                     " layers, the model has " + std::to_string(config.layers));
    }
    for (uint32_t i = 0; i < config.layers; ++i) {
      const json& type = (*types)[i];
      if (type == "sliding_attention") {
        config.window[i] = window;
      } else if (type != "full_attention") {
        return unsupported("config.json: layer " + std::to_string(i) + " is of type " +
                           type.dump().substr(0, 40));
      }
    }
    return {};
  }
  if (rule == Family::Window::kAlternating) {
    for (uint32_t i = 0; i < config.layers; i += 2) config.window[i] = window;
    return {};
  }
  uint32_t first = 0;
  if (rule == Family::Window::kOptIn) {
    TANDEM_ASSIGN(first, count(object, "max_window_layers", kMaxLayers, 28));
  }
  for (uint32_t i = first; i < config.layers; ++i) config.window[i] = window;
  return {};
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view text) {
  if (text.size() > kMaxConfig) {
    return invalid("config.json: " + std::to_string(text.size()) + " bytes, at most " +
                   std::to_string(kMaxConfig) + " are read");
  }
  const json object = json::parse(text, nullptr, false);
  if (object.is_discarded()) return invalid("config.json: not valid JSON");
  if (!object.is_object()) return invalid("config.json: not a JSON object");
  ModelConfig config;
  TANDEM_ASSIGN(config.family, read_family(object));
  config.architecture = config.family->architecture;
  config.norm = config.family->norm;
  config.mlp = config.family->mlp;
  config.qk_norm = config.family->qk_norm;
  config.prefix = config.family->names.prefix;
  config.learned_positions = !config.family->names.positions.empty();
  config.rope.enabled = config.family->rotary;
  TANDEM_TRY(refuse_unknown_arithmetic(object, *config.family));
  TANDEM_TRY(read_activation(object, *config.family));
  TANDEM_TRY(read_sizes(object, config));
  TANDEM_TRY(read_biases(object, config));
  TANDEM_TRY(read_windows(object, config));
  TANDEM_ASSIGN(config.tied_embeddings,
                flag(object, "tie_word_embeddings", config.family->tied_by_default));
  if (config.rope.enabled) TANDEM_TRY(read_rope(object, config));
  TANDEM_TRY(read_experts(object, config));
  config.context = std::min(config.context, arithmetic::kMaxPositions);
  return config;
}

void resolve_prefix(ModelConfig& config, const std::function<bool(std::string_view)>& has) {
  const TensorNames& names = config.family->names;
  config.prefix = names.prefix;
  const std::string bare = std::string(names.embedding) + ".weight";
  if (!has(config.prefix + bare) && has(bare)) config.prefix.clear();
  resolve_experts(config, has);
}

}  // namespace tandem::model
