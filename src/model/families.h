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
  std::string_view positions = {};
  std::string_view layers = "layers.";
  std::string_view final_norm = "norm";
  std::string_view head = "lm_head";  ///< without prefix
  std::string_view attention_norm = "input_layernorm";
  std::string_view query = "self_attn.q_proj";
  std::string_view key = "self_attn.k_proj";
  std::string_view value = "self_attn.v_proj";
  std::string_view query_key_value = {};  ///< one matrix for all three instead
  std::string_view query_norm = "self_attn.q_norm";
  std::string_view key_norm = "self_attn.k_norm";
  std::string_view output = "self_attn.o_proj";
  std::string_view mlp_norm = "post_attention_layernorm";
  std::string_view gate = "mlp.gate_proj";
  std::string_view up = "mlp.up_proj";
  std::string_view down = "mlp.down_proj";
  // Of layers that are gated delta nets.
  std::string_view mixed = {};  ///< queries, keys and values in one matrix
  std::string_view delta_gate = {};
  std::string_view rate = {};
  std::string_view decay = {};
  std::string_view convolution = {};
  std::string_view log_decay = {};   ///< as it is, no ".weight"
  std::string_view decay_bias = {};  ///< likewise
  std::string_view delta_norm = {};
  std::string_view delta_output = {};
};

/// Where a family's biases come from.
enum class BiasRule : uint8_t {
  kNone,
  kQueryKeyValue,  ///< q, k and v always
  kConfig,         ///< attention_bias for q, k, v and output; mlp_bias for the MLP
  kAll,
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
  /// max_window_layers decide; layer_types decides for both when it is given.
  enum class Window : uint8_t { kNone, kAlways, kOptIn } window = Window::kNone;
  /// Gated delta nets, every full_attention_interval-th layer attention with a gate; a part of each
  /// head rotated; norms that multiply by 1 + weight.
  bool hybrid = false;
  /// Where the text model of a larger one is: its config under this key, its tensors under this
  /// prefix. Empty: the model is no part of another.
  std::string_view inner_config = {};
  std::string_view inner_prefix = {};
  /// Tensors beside the model's own, by prefix, that are known: those that are left out, and those
  /// of layers that predict further tokens, kept for drafting.
  std::string_view left_out = {};
  std::string_view drafting = {};
};

/// The table.
std::span<const Family> families();
/// Null if there is none.
const Family* find_family(std::string_view architecture);

}  // namespace tandem::model
