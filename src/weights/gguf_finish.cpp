#include "weights/gguf_finish.h"

#include <nlohmann/json.hpp>
#include <string>

namespace tandem::weights {
namespace {

using Json = nlohmann::ordered_json;

// Which layers have a window: a flag a layer, or how many layers from one full layer to the next.
Status add_layer_types(const GgufHeader& header, const std::string& architecture, uint32_t interval,
                       Json& config) {
  const std::string key = architecture + ".attention.sliding_window_pattern";
  const auto layers = config["num_hidden_layers"].get<uint32_t>();
  const GgufValue* pattern = header.find(key);
  const auto* flags = pattern == nullptr ? nullptr : std::get_if<std::vector<uint64_t>>(pattern);
  if (flags != nullptr && flags->size() != layers) {
    return invalid("key " + key + ": expected " + std::to_string(layers) + " layers, found " +
                   std::to_string(flags->size()));
  }
  if (flags == nullptr) {
    TANDEM_ASSIGN(const auto given, header.integer(key, 1, 4096));
    interval = static_cast<uint32_t>(given.value_or(interval));
  }
  Json types = Json::array();
  for (uint32_t i = 0; i < layers; ++i) {
    const bool sliding = flags != nullptr ? (*flags)[i] != 0 : (i + 1) % interval != 0;
    types.push_back(sliding ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = types;
  return {};
}

}  // namespace

Status finish_llama(const GgufHeader& header, Json& config) {
  config["attention_bias"] = header.find_tensor("blk.0.attn_q.bias") != nullptr;
  config["mlp_bias"] = header.find_tensor("blk.0.ffn_up.bias") != nullptr;
  return {};
}

Status finish_qwen3(const GgufHeader& header, Json& config) {
  config["attention_bias"] = header.find_tensor("blk.0.attn_q.bias") != nullptr;
  return {};
}

Status finish_qwen3_moe(const GgufHeader& /*header*/, Json& config) {
  config["norm_topk_prob"] = true;
  config["decoder_sparse_step"] = 1;
  return {};
}

// Every fourth layer without rotary embedding, as the program that reads these files has it too:
// the file does not say.
Status finish_smollm3(const GgufHeader& header, Json& config) {
  TANDEM_TRY(finish_llama(header, config));
  Json rotated = Json::array();
  for (uint32_t i = 0; i < config["num_hidden_layers"].get<uint32_t>(); ++i) {
    rotated.push_back((i + 1) % 4 != 0 ? 1 : 0);
  }
  config["no_rope_layers"] = rotated;
  return {};
}

Status finish_gpt2(const GgufHeader& /*header*/, Json& config) {
  config["activation_function"] = "gelu_new";
  return {};
}

// The score's scale, and in older files the layers with a window and their rotary base, are the
// family's: files don't say them.
Status finish_gemma3(const GgufHeader& header, Json& config) {
  constexpr uint32_t kLayersOf27b = 62;
  const auto layers = config["num_hidden_layers"].get<uint32_t>();
  const auto width = config["hidden_size"].get<uint32_t>();
  const auto heads = config["num_attention_heads"].get<uint32_t>();
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["query_pre_attn_scalar"] =
      layers == kLayersOf27b ? width / heads : config["head_dim"].get<uint32_t>();
  TANDEM_TRY(add_layer_types(header, "gemma3", 6, config));
  TANDEM_ASSIGN(const auto local, header.number("gemma3.rope.freq_base_swa"));
  config["rope_local_base_freq"] = local.value_or(10000.0);
  return {};
}

Status finish_gpt_oss(const GgufHeader& header, Json& config) {
  config["attention_bias"] = true;
  // Layers with a window and without take turns.
  TANDEM_TRY(add_layer_types(header, "gpt-oss", 2, config));
  if (config.contains("rope_scaling")) config["rope_scaling"]["truncate"] = false;
  return {};
}

Status finish_qwen35(const GgufHeader& header, Json& config) {
  TANDEM_ASSIGN(const std::string name, header.text("general.architecture"));
  TANDEM_ASSIGN(const auto inner, header.integer(name + ".ssm.inner_size", 1, UINT32_MAX));
  const Json& given = config["linear_num_value_heads"];
  const uint64_t heads = given.is_number_unsigned() ? given.get<uint64_t>() : 0;
  if (!inner || heads == 0 || *inner % heads != 0) {
    return invalid("key " + name + ".ssm.inner_size: expected a multiple of " +
                   std::to_string(heads) + " value heads");
  }
  config["linear_value_head_dim"] = *inner / heads;
  // Layers that only draft tokens ahead come last.
  TANDEM_ASSIGN(const auto drafts, header.integer(name + ".nextn_predict_layers", 0, 64));
  const auto all = config["num_hidden_layers"].get<uint64_t>();
  if (drafts.value_or(0) >= all) {
    return invalid("key " + name + ".nextn_predict_layers: expected less than " +
                   std::to_string(all));
  }
  const uint64_t layers = all - drafts.value_or(0);
  config["num_hidden_layers"] = layers;
  const std::string key = name + ".attention.recurrent_layers";
  const GgufValue* value = header.find(key);
  if (value == nullptr) return {};
  const auto* flags = std::get_if<std::vector<uint64_t>>(value);
  if (flags == nullptr || flags->size() < layers) {
    return invalid("key " + key + ": expected a flag for each of " + std::to_string(layers) +
                   " layers");
  }
  Json types = Json::array();
  for (uint64_t i = 0; i < layers; ++i) {
    types.push_back((*flags)[i] != 0 ? "linear_attention" : "full_attention");
  }
  config["layer_types"] = types;
  return {};
}

}  // namespace tandem::weights
