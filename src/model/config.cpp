#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "arithmetic/format.h"
#include "model/config_json.h"
#include "model/expert_config.h"
#include "model/families.h"
#include "model/rope_config.h"

namespace tandem::model {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfig = size_t{1} << 20;
constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxVocab = 1U << 22;

// Keys that change a forward pass in a way that no family of the table has. Each must be absent,
// null or the value that changes nothing.
// `family` reads its own keys itself.
Status refuse_unknown_arithmetic(const json& object, const Family& family) {
  const std::span<const std::string_view> own = family.own_keys;
  struct Neutral {
    std::string_view key;
    json value;
  };
  static const std::vector<Neutral> kNeutral = {
      {"quantization_config", nullptr},
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
      {"use_bidirectional_attention", false},
  };
  for (const Neutral& neutral : kNeutral) {
    if (family.experts != nullptr && is_expert_key(neutral.key)) continue;
    if (is_mxfp4(family, neutral.key, object)) continue;
    const auto found = object.find(neutral.key);
    if (found == object.end() || found->is_null() || *found == neutral.value) continue;
    if (std::find(own.begin(), own.end(), neutral.key) != own.end()) continue;
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
  // Names of the same function.
  constexpr std::string_view kTanhForms[] = {"gelu_new", "gelu_pytorch_tanh"};
  if (found->is_string() && family.mlp != MlpKind::kGatedSilu &&
      std::count(std::begin(kTanhForms), std::end(kTanhForms),
                 found->get_ref<const std::string&>()) != 0) {
    return {};
  }
  // "swish" is the older name of SiLU.
  if (*found == "swish" && family.activation == "silu") return {};
  return unsupported("config.json: " + key_name(family.keys.activation) + " is " +
                     found->dump().substr(0, 40) + "; for " + std::string(family.architecture) +
                     " Tandem computes " + key_name(family.activation));
}

Status read_heads(const json& object, ModelConfig& config) {
  const ConfigKeys& keys = config.family->keys;
  const Defaults& defaults = config.family->defaults;
  TANDEM_ASSIGN(config.heads, read_count(object, keys.heads, 4096, defaults.heads));
  config.kv_heads = config.heads;
  if (!keys.kv_heads.empty()) {
    // null says as many as query heads; only a missing key has a default of its own.
    const bool own = !object.contains(keys.kv_heads) && defaults.kv_heads != 0;
    TANDEM_ASSIGN(config.kv_heads,
                  read_count(object, keys.kv_heads, 4096, own ? defaults.kv_heads : config.heads));
  }
  if (config.heads % config.kv_heads != 0) {
    return invalid("config.json: " + std::to_string(config.heads) + " query heads can't share " +
                   std::to_string(config.kv_heads) + " key/value heads evenly");
  }
  config.head_dim = config.hidden_size / config.heads;
  const bool given = !keys.head_dim.empty() && has_value(object, keys.head_dim);
  if (given || defaults.head_dim != 0) {
    TANDEM_ASSIGN(config.head_dim,
                  read_count(object, keys.head_dim, arithmetic::kMaxHeadDim, defaults.head_dim));
  } else if (config.hidden_size % config.heads != 0 || config.head_dim > arithmetic::kMaxHeadDim) {
    return invalid("config.json: a hidden size of " + std::to_string(config.hidden_size) +
                   " does not divide into " + std::to_string(config.heads) + " heads of at most " +
                   std::to_string(arithmetic::kMaxHeadDim));
  }
  if (uint64_t{config.heads} * config.head_dim > arithmetic::kMaxRow) {
    return unsupported("config.json: " + std::to_string(config.heads) + " heads of " +
                       std::to_string(config.head_dim) + " are wider than " +
                       std::to_string(arithmetic::kMaxRow));
  }
  if (config.family->rotary && config.head_dim % 2 != 0) {
    return invalid("config.json: rotary heads need an even head_dim, not " +
                   std::to_string(config.head_dim));
  }
  return {};
}

Status read_sizes(const json& object, ModelConfig& config) {
  const Family& family = *config.family;
  const ConfigKeys& keys = family.keys;
  const Defaults& defaults = family.defaults;
  TANDEM_ASSIGN(config.layers, read_count(object, keys.layers, kMaxLayers, defaults.layers));
  TANDEM_ASSIGN(config.hidden_size,
                read_count(object, keys.hidden_size, arithmetic::kMaxRow, defaults.hidden_size));
  const uint32_t wide =
      family.mlp == MlpKind::kGelu ? 4 * config.hidden_size : defaults.intermediate_size;
  TANDEM_ASSIGN(config.intermediate_size,
                read_count(object, keys.intermediate_size, arithmetic::kMaxRow, wide));
  if (config.intermediate_size > arithmetic::kMaxRow) {
    return unsupported("config.json: an MLP of width " + std::to_string(config.intermediate_size) +
                       " is wider than " + std::to_string(arithmetic::kMaxRow));
  }
  TANDEM_TRY(read_heads(object, config));
  TANDEM_ASSIGN(config.vocab, read_count(object, "vocab_size", kMaxVocab, defaults.vocab));
  TANDEM_ASSIGN(config.context, read_count(object, keys.context, 1U << 30, defaults.context));
  TANDEM_ASSIGN(config.norm_eps, read_number(object, keys.norm_eps, 0, 1, defaults.norm_eps));
  return {};
}

// A wrapping config and the wrapped one may both say whether the head is the embedding.
Status read_tied(const json& whole, const json& object, ModelConfig& config) {
  TANDEM_ASSIGN(const bool inner,
                read_flag(object, "tie_word_embeddings", config.family->tied_by_default));
  TANDEM_ASSIGN(config.tied_embeddings, read_flag(whole, "tie_word_embeddings", inner));
  config.tied_if_no_head = config.tied_embeddings != inner;
  return {};
}

// The object that describes the text model.
Result<const json*> text_object(const json& whole, const Family& family) {
  if (family.text_config.empty()) return &whole;
  const auto found = whole.find(family.text_config);
  if (found == whole.end() || !found->is_object()) {
    return invalid("config.json: " + key_name(family.text_config) + " must be an object");
  }
  return &*found;
}

std::string_view dtype_of(const json& whole, const json& object) {
  for (const json* place : {&object, &whole}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const auto found = place->find(key);
      if (found != place->end() && found->is_string()) return found->get_ref<const std::string&>();
    }
  }
  return {};
}

Status read_biases(const json& object, ModelConfig& config) {
  TANDEM_ASSIGN(const bool attention,
                read_flag(object, "attention_bias", config.family->biased_by_default));
  TANDEM_ASSIGN(const bool mlp, read_flag(object, "mlp_bias", false));
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

}  // namespace

Result<uint32_t> read_count(const json& object, std::string_view key, uint32_t limit,
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

Result<bool> read_flag(const json& object, std::string_view key, bool fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) {
    return invalid("config.json: " + key_name(key) + " must be true or false, not " +
                   found->dump().substr(0, 40));
  }
  return found->get<bool>();
}

Result<double> read_number(const json& object, std::string_view key, double low, double high,
                           double fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_number() || !(found->get<double>() >= low) || found->get<double>() > high) {
    const auto text = [](double x) { return json(x).dump(); };
    return invalid("config.json: " + key_name(key) + " must be a number from " + text(low) +
                   " to " + text(high) + ", not " + found->dump().substr(0, 40));
  }
  return found->get<double>();
}

uint32_t ModelConfig::recurrent_layers(uint32_t first, uint32_t last) const {
  return static_cast<uint32_t>(
      std::count(kinds.begin() + first, kinds.begin() + last, LayerKind::kDeltaNet));
}

Result<ModelConfig> parse_config(std::string_view text) {
  if (text.size() > kMaxConfig) {
    return invalid("config.json: " + std::to_string(text.size()) + " bytes, at most " +
                   std::to_string(kMaxConfig) + " are read");
  }
  const json whole = json::parse(text, nullptr, false);
  if (whole.is_discarded()) return invalid("config.json: not valid JSON");
  if (!whole.is_object()) return invalid("config.json: not a JSON object");
  ModelConfig config;
  TANDEM_ASSIGN(config.family, read_family(whole));
  TANDEM_ASSIGN(const json* const text_model, text_object(whole, *config.family));
  const json& object = *text_model;
  config.architecture = config.family->architecture;
  config.norm = config.family->norm;
  config.mlp = config.family->mlp;
  config.qk_norm = config.family->qk_norm;
  config.norm_plus_one = config.family->norm_plus_one;
  config.prefix = config.family->names.prefix;
  config.head = config.family->names.head;
  config.learned_positions = !config.family->names.positions.empty();
  config.rope.enabled = config.family->rotary;
  TANDEM_TRY(refuse_unknown_arithmetic(object, *config.family));
  TANDEM_TRY(refuse_unknown_arithmetic(whole, *config.family));
  TANDEM_TRY(read_activation(object, *config.family));
  TANDEM_TRY(read_sizes(object, config));
  TANDEM_TRY(read_biases(object, config));
  TANDEM_TRY(read_layer_kinds(object, config));
  TANDEM_TRY(read_hybrid(object, config));
  TANDEM_TRY(read_multipliers(object, dtype_of(whole, object), config));
  TANDEM_TRY(read_tied(whole, object, config));
  if (config.rope.enabled) TANDEM_TRY(read_rope(object, config));
  TANDEM_TRY(read_experts(object, config));
  config.context = std::min(config.context, arithmetic::kMaxPositions);
  return config;
}

void resolve_prefix(ModelConfig& config, const std::function<bool(std::string_view)>& has) {
  const TensorNames& names = config.family->names;
  const std::string bare = std::string(names.embedding) + ".weight";
  config.prefix = names.prefix;
  const auto fits = [&](std::string_view prefix) { return has(std::string(prefix) + bare); };
  if (!fits(names.prefix)) {
    for (const std::string_view wrapped : names.wrapped_prefixes) {
      if (!wrapped.empty() && fits(wrapped)) config.prefix = wrapped;
    }
    if (config.prefix == names.prefix && fits("")) config.prefix.clear();
  }
  // A wrapped model's head stands beside it, within the wrapper or not.
  config.head = names.head;
  bool has_head = has(config.head + ".weight");
  const size_t wrapper = config.prefix.find('.') + 1;
  if (!has_head && wrapper < config.prefix.size()) {
    const std::string inner = config.prefix.substr(0, wrapper) + config.head;
    has_head = has(inner + ".weight");
    if (has_head) config.head = inner;
  }
  if (config.tied_if_no_head) config.tied_embeddings = !has_head;
  resolve_experts(config, has);
}

}  // namespace tandem::model
