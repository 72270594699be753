#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "arithmetic/format.h"
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
Status refuse_unknown_arithmetic(const json& object) {
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
  };
  for (const Neutral& neutral : kNeutral) {
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

// The part of a config that describes the text model: all of it, or an object within.
Result<json> text_model(const json& whole, const Family& family) {
  if (family.inner_config.empty() || !whole.contains(family.inner_config)) return whole;
  json inner = whole[std::string(family.inner_config)];
  if (!inner.is_object()) {
    return invalid("config.json: " + key_name(family.inner_config) + " must be an object");
  }
  // Settings of the whole model that concern this part.
  for (const char* key : {"tie_word_embeddings", "quantization_config"}) {
    if (whole.contains(key) && !whole[key].is_null()) inner[key] = whole[key];
  }
  return inner;
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
    config.norm_eps = family.norm == NormKind::kLayer ? 1e-5 : 1e-6;
  }
  return {};
}

Status read_biases(const json& object, ModelConfig& config) {
  TANDEM_ASSIGN(const bool attention, flag(object, "attention_bias", false));
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
  if (rule == Family::Window::kOptIn && !opted_in) return {};
  const auto given = object.find("sliding_window");
  if (given != object.end() && given->is_null()) return {};
  TANDEM_ASSIGN(const uint32_t window, count(object, "sliding_window", 1U << 30, 4096));
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
  uint32_t first = 0;
  if (rule == Family::Window::kOptIn) {
    TANDEM_ASSIGN(first, count(object, "max_window_layers", kMaxLayers, 28));
  }
  for (uint32_t i = first; i < config.layers; ++i) config.window[i] = window;
  return {};
}

// Layers, shapes and settings of gated delta nets.
Status read_hybrid(const json& object, ModelConfig& config) {
  config.kinds.assign(config.layers, LayerKind::kAttention);
  if (!config.family->hybrid) return {};
  config.gated_attention = config.unit_offset_norms = true;
  TANDEM_ASSIGN(const bool gate, flag(object, "attn_output_gate", true));
  if (!gate) return unsupported("config.json: 'attn_output_gate' is false; Tandem computes true");
  const auto types = object.find("layer_types");
  if (types != object.end() && !types->is_null()) {
    if (!types->is_array() || types->size() != config.layers) {
      return invalid("config.json: 'layer_types' must be a list of " +
                     std::to_string(config.layers) + " layers' types");
    }
    for (uint32_t i = 0; i < config.layers; ++i) {
      const json& type = (*types)[i];
      if (type == "linear_attention") {
        config.kinds[i] = LayerKind::kDeltaNet;
      } else if (type != "full_attention") {
        return unsupported("config.json: layer " + std::to_string(i) + " is of type " +
                           type.dump().substr(0, 40));
      }
    }
  } else {
    TANDEM_ASSIGN(const uint32_t interval, count(object, "full_attention_interval", kMaxLayers, 4));
    for (uint32_t i = 0; i < config.layers; ++i) {
      if ((i + 1) % interval != 0) config.kinds[i] = LayerKind::kDeltaNet;
    }
  }
  kernels::DeltaShape& delta = config.delta;
  TANDEM_ASSIGN(delta.key_heads, count(object, "linear_num_key_heads", 4096, 16));
  TANDEM_ASSIGN(delta.value_heads, count(object, "linear_num_value_heads", 4096, 32));
  TANDEM_ASSIGN(delta.key_dim, count(object, "linear_key_head_dim", arithmetic::kMaxHeadDim, 128));
  TANDEM_ASSIGN(delta.value_dim,
                count(object, "linear_value_head_dim", arithmetic::kMaxHeadDim, 128));
  TANDEM_ASSIGN(delta.kernel, count(object, "linear_conv_kernel_dim", 8, 4));
  if (delta.value_heads % delta.key_heads != 0 || delta.key_dim % 16 != 0 ||
      delta.value_dim % 16 != 0 || delta.kernel < 2) {
    return unsupported("config.json: a gated delta net of " + std::to_string(delta.key_heads) +
                       " key heads of " + std::to_string(delta.key_dim) + ", " +
                       std::to_string(delta.value_heads) + " value heads of " +
                       std::to_string(delta.value_dim) + " and a convolution over " +
                       std::to_string(delta.kernel) +
                       " positions; heads must share evenly, their sizes be multiples of 16, and "
                       "the convolution see 2 to 8 positions");
  }
  if (delta.columns() > arithmetic::kMaxRow ||
      2 * config.heads * config.head_dim > arithmetic::kMaxRow) {
    return unsupported(
        "config.json: projections of " +
        std::to_string(std::max(delta.columns(), 2 * config.heads * config.head_dim)) +
        " columns are wider than " + std::to_string(arithmetic::kMaxRow));
  }
  return {};
}

}  // namespace

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
  TANDEM_ASSIGN(const json object, text_model(whole, *config.family));
  config.architecture = config.family->architecture;
  config.norm = config.family->norm;
  config.mlp = config.family->mlp;
  config.qk_norm = config.family->qk_norm;
  config.prefix = config.family->names.prefix;
  config.learned_positions = !config.family->names.positions.empty();
  config.rope.enabled = config.family->rotary;
  TANDEM_TRY(refuse_unknown_arithmetic(object));
  TANDEM_TRY(read_activation(object, *config.family));
  TANDEM_TRY(read_sizes(object, config));
  TANDEM_TRY(read_biases(object, config));
  TANDEM_TRY(read_windows(object, config));
  TANDEM_TRY(read_hybrid(object, config));
  TANDEM_ASSIGN(config.tied_embeddings,
                flag(object, "tie_word_embeddings", config.family->tied_by_default));
  if (config.rope.enabled) TANDEM_TRY(read_rope(object, config));
  config.context = std::min(config.context, arithmetic::kMaxPositions);
  return config;
}

void resolve_prefix(ModelConfig& config, const std::function<bool(std::string_view)>& has) {
  const TensorNames& names = config.family->names;
  const std::string bare = std::string(names.embedding) + ".weight";
  config.prefix = names.prefix;
  const std::string_view inner = config.family->inner_prefix;
  if (!inner.empty() && has(std::string(inner) + bare)) {
    config.prefix = inner;
  } else if (!has(config.prefix + bare) && has(bare)) {
    config.prefix.clear();
  }
}

}  // namespace tandem::model
