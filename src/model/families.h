// What a family of models is: a description, read by config, stage and layer. Adding a family of
// known parts is adding a row to the table in families.cpp.
#pragma once

#include <array>
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

/// What transformers takes for keys that a config.json leaves out. 0: the key must be there, or
/// follows from others (heads, head_dim).
struct Defaults {
  uint32_t layers = 0;
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;  ///< 0: as many as heads
  uint32_t head_dim = 0;  ///< 0: hidden_size / heads
  uint32_t vocab = 0;
  uint32_t context = 0;
  double norm_eps = 1e-6;
  double theta = 10000.0;
  uint32_t window = 0;            ///< sliding_window; 0: none
  uint32_t original_context = 0;  ///< of rope scaling; 0: the context
};

/// Names of tensors. Those of a layer follow "<prefix><layers><index>."; ".weight" and ".bias" are
/// appended. Empty: the family has none.
struct TensorNames {
  std::string_view prefix = "model.";  ///< may be absent in a checkpoint of the bare model
  /// Other prefixes, of checkpoints in which the model is a part of a larger one.
  std::array<std::string_view, 2> wrapped_prefixes = {};
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
  std::string_view gate_up = {};         ///< one matrix for both instead, the gate first
  std::string_view attention_post = {};  ///< norm of what the attention half adds
  std::string_view mlp_post = {};        ///< norm of what the MLP half adds
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
  QueryKeyNorm qk_norm = QueryKeyNorm::kNone;
  bool transposed = false;  ///< matrices stored input-major
  bool tied_by_default = false;
  /// Sliding windows: kAlways: sliding_window for every layer; kOptIn: use_sliding_window and
  /// max_window_layers decide; layer_types decides for both when it is given.
  /// kPattern: every sliding_window_pattern-th layer sees all; kWithoutRope: use_sliding_window
  /// lets it slide in layers without rope. kOptInAll: use_sliding_window decides
  /// for all layers. kAlternating: every other layer from the first on.
  enum class Window : uint8_t {
    kNone,
    kAlways,
    kOptIn,
    kPattern,
    kWithoutRope,
    kOptInAll,
    kAlternating,
  } window = Window::kNone;
  Defaults defaults = {};
  /// Keys of arithmetic that no other family has: the ones that this family reads.
  std::span<const std::string_view> own_keys = {};
  /// The object of config.json that holds everything else. Empty: the whole.
  std::string_view text_config = {};
  bool norm_plus_one = false;
  bool partial_rotary = false;       ///< partial_rotary_factor may be below 1
  bool layers_without_rope = false;  ///< no_rope_layers, no_rope_layer_interval
  double local_theta = 0;  ///< sliding layers' own rope base by default; 0: they have none
  /// The embedding is multiplied by sqrt(hidden_size), rounded to the checkpoint's type.
  bool scaled_embedding = false;
  bool multipliers = false;   ///< Granite's four
  bool query_scalar = false;  ///< query_pre_attn_scalar replaces head_dim in the scores' scale
  const ExpertRules* experts = nullptr;  ///< null: no mixture of experts
  bool yarn_by_default = false;          ///< gpt-oss: rope is scaled unless the config says how
  bool biased_by_default = false;        ///< attention_bias where the config does not say
  std::string_view sinks = {};  ///< tensor of a logit a head, after the layer's name; empty: none
  /// Gated delta nets, every full_attention_interval-th layer attention with a gate.
  bool hybrid = false;
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
