// What a family of models is: a description, read by config, stage and layer. Adding a family of
// known parts is adding a row to the table in families.cpp.
#pragma once

#include <span>
#include <string_view>

#include "model/config.h"

namespace tandem::model {

/// Names of a config.json's keys, where families differ. Empty: the family has no such key.
struct ConfigKeys {
  std::string_view layers = "num_hidden_layers";
  std::string_view hidden_size = "hidden_size";
  std::string_view intermediate_size = "intermediate_size";
  std::string_view heads = "num_attention_heads";
  std::string_view kv_heads = "num_key_value_heads";
  std::string_view head_dim = "head_dim";
  std::string_view context = "max_position_embeddings";
  std::string_view norm_eps = "rms_norm_eps";
  std::string_view activation = "hidden_act";
};

/// Names of tensors. Those of a layer follow "<prefix><layers><index>."; ".weight" and ".bias" are
/// appended. Empty: the family has none.
struct TensorNames {
  std::string_view prefix = "model.";  ///< may be absent in a checkpoint of the bare model
  std::string_view embedding = "embed_tokens";
  std::string_view positions;
  std::string_view layers = "layers.";
  std::string_view final_norm = "norm";
  std::string_view head = "lm_head";  ///< without prefix
  std::string_view attention_norm = "input_layernorm";
  std::string_view query = "self_attn.q_proj";
  std::string_view key = "self_attn.k_proj";
  std::string_view value = "self_attn.v_proj";
  std::string_view query_key_value;  ///< one matrix for all three instead
  std::string_view query_norm = "self_attn.q_norm";
  std::string_view key_norm = "self_attn.k_norm";
  std::string_view output = "self_attn.o_proj";
  std::string_view mlp_norm = "post_attention_layernorm";
  std::string_view gate = "mlp.gate_proj";
  std::string_view up = "mlp.up_proj";
  std::string_view down = "mlp.down_proj";
};

/// Where a family's biases come from.
enum class BiasRule : uint8_t {
  kNone,
  kQueryKeyValue,  ///< q, k and v always
  kConfig,         ///< attention_bias for q, k, v and output; mlp_bias for the MLP
  kAll,
};

/// What families with a mixture of experts have of their own.
struct ExpertRules {
  std::string_view width = "moe_intermediate_size";  ///< config key of an expert's width
  std::string_view shared_width = {};                ///< likewise of the shared one; empty: none
  enum class Normalize : uint8_t { kAlways, kConfig } normalize = Normalize::kAlways;
  /// decoder_sparse_step and mlp_only_layers say which layers have experts.
  bool sparse_step = false;
  bool biases = false;       ///< of router and experts
  bool input_major = false;  ///< fused tensors are kInputMajor, not kFused
  bool clamped = false;      ///< clamped SwiGLU
  // Tensor names, which follow those of the layer.
  std::string_view router = "mlp.gate";
  std::string_view experts =
      "mlp.experts.";  ///< an expert's index and name follow, or a fused name
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view shared = "mlp.shared_expert.";
  std::string_view shared_gate = "mlp.shared_expert_gate";
};

struct Family {
  std::string_view architecture;
  ConfigKeys keys;
  TensorNames names;
  NormKind norm = NormKind::kRms;
  MlpKind mlp = MlpKind::kGatedSilu;
  std::string_view activation = "silu";  ///< the value of the activation key that `mlp` stands for
  BiasRule bias = BiasRule::kNone;
  bool rotary = true;
  bool qk_norm = false;
  bool transposed = false;  ///< matrices stored input-major
  bool tied_by_default = false;
  /// Sliding windows: kAlways: sliding_window for every layer; kOptIn: use_sliding_window and
  /// max_window_layers decide; layer_types decides for both when it is given. kIfGiven: as kAlways,
  /// but none unless sliding_window says so. kOptInAll: use_sliding_window decides for all layers.
  /// kAlternating: every other layer from the first on, unless layer_types says otherwise.
  enum class Window : uint8_t {
    kNone,
    kAlways,
    kOptIn,
    kIfGiven,
    kOptInAll,
    kAlternating
  } window = Window::kNone;
  const ExpertRules* experts = nullptr;  ///< null: no mixture of experts
  double default_eps = 0;                ///< of norms; 0: 1e-6, or 1e-5 for layer norms
  double default_theta = 10000.0;        ///< rope's base
  bool yarn_by_default = false;          ///< gpt-oss: rope is scaled unless the config says how
  bool biased_by_default = false;        ///< attention_bias where the config does not say
  std::string_view sinks = {};  ///< tensor of a logit a head, after the layer's name; empty: none
};

/// The table.
std::span<const Family> families();
/// Null if there is none.
const Family* find_family(std::string_view architecture);

}  // namespace tandem::model
