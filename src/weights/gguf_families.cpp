#include "weights/gguf_families.h"

#include <algorithm>
#include <array>
#include <string>

#include "weights/gguf_finish.h"
#include "weights/printable.h"

namespace tandem::weights {
namespace {

using Change = GgufChange;

// One table of the rows of several, in their order.
template <typename Row, size_t... kSizes>
constexpr auto joined(const std::array<Row, kSizes>&... tables) {
  std::array<Row, (kSizes + ...)> all{};
  size_t at = 0;
  const auto add = [&](const auto& table) {
    for (const Row& row : table) all[at++] = row;
  };
  (add(tables), ...);
  return all;
}

constexpr std::array<GgufKeyRow, 8> kKeys{{
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"context_length", "max_position_embeddings"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
}};

constexpr auto kWindowKeys = joined(kKeys, std::array<GgufKeyRow, 1>{{
                                               {"attention.sliding_window", "sliding_window"},
                                           }});

constexpr auto kMixtralKeys = joined(kKeys, std::array<GgufKeyRow, 2>{{
                                                {"expert_count", "num_local_experts"},
                                                {"expert_used_count", "num_experts_per_tok"},
                                            }});

constexpr auto kQwen3MoeKeys =
    joined(kKeys, std::array<GgufKeyRow, 3>{{
                      {"expert_count", "num_experts"},
                      {"expert_used_count", "num_experts_per_tok"},
                      {"expert_feed_forward_length", "moe_intermediate_size"},
                  }});

constexpr auto kQwen35Keys =
    joined(kKeys, std::array<GgufKeyRow, 9>{{
                      {"ssm.conv_kernel", "linear_conv_kernel_dim"},
                      {"ssm.state_size", "linear_key_head_dim"},
                      {"ssm.group_count", "linear_num_key_heads"},
                      {"ssm.time_step_rank", "linear_num_value_heads"},
                      {"full_attention_interval", "full_attention_interval"},
                      {"expert_count", "num_experts"},
                      {"expert_used_count", "num_experts_per_tok"},
                      {"expert_feed_forward_length", "moe_intermediate_size"},
                      {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
                  }});

constexpr auto kGraniteKeys = joined(kKeys, std::array<GgufKeyRow, 4>{{
                                                {"attention.scale", "attention_multiplier"},
                                                {"embedding_scale", "embedding_multiplier"},
                                                {"residual_scale", "residual_multiplier"},
                                                {"logit_scale", "logits_scaling"},
                                            }});

// Without the width of an MLP that no layer has.
constexpr std::array<GgufKeyRow, 11> kGptOssKeys{{
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"context_length", "max_position_embeddings"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.sliding_window", "sliding_window"},
    {"expert_count", "num_local_experts"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "intermediate_size"},
}};

constexpr std::array<GgufKeyRow, 6> kGpt2Keys{{
    {"block_count", "n_layer"},
    {"embedding_length", "n_embd"},
    {"feed_forward_length", "n_inner"},
    {"attention.head_count", "n_head"},
    {"context_length", "n_positions"},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon"},
}};

constexpr std::array<GgufTensorRow, 3> kGlobals{{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};

// Gemma and Qwen3.5 store norms less one.
constexpr std::array<GgufTensorRow, 3> kPlusOneGlobals{{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm", Change::kPlusOne},
    {"output", "lm_head"},
}};

constexpr std::array<GgufTensorRow, 4> kGpt2Globals{{
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
}};

constexpr std::array<GgufTensorRow, 2> kNorms{{
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
}};

constexpr std::array<GgufTensorRow, 4> kAttention{{
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
}};

// Of families whose rotary pairs the converter makes neighbours.
constexpr std::array<GgufTensorRow, 4> kPairedAttention{{
    {"attn_q", "self_attn.q_proj", Change::kPairedQuery},
    {"attn_k", "self_attn.k_proj", Change::kPairedKey},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
}};

constexpr std::array<GgufTensorRow, 2> kHeadNorms{{
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
}};

// A layer's first norm and those of heads, stored less one.
constexpr std::array<GgufTensorRow, 3> kPlusOneNorms{{
    {"attn_norm", "input_layernorm", Change::kPlusOne},
    {"attn_q_norm", "self_attn.q_norm", Change::kPlusOne},
    {"attn_k_norm", "self_attn.k_norm", Change::kPlusOne},
}};

constexpr std::array<GgufTensorRow, 3> kMlp{{
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

constexpr std::array<GgufTensorRow, 4> kExperts{{
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.%.gate_proj", Change::kExperts},
    {"ffn_up_exps", "mlp.experts.%.up_proj", Change::kExperts},
    {"ffn_down_exps", "mlp.experts.%.down_proj", Change::kExperts},
}};

constexpr auto kLlama = joined(kNorms, kPairedAttention, kMlp);
constexpr auto kQwen = joined(kNorms, kAttention, kHeadNorms, kMlp);
constexpr auto kQwen3Moe = joined(kNorms, kAttention, kHeadNorms, kExperts);

constexpr auto kMixtral =
    joined(kNorms, kPairedAttention,
           std::array<GgufTensorRow, 4>{{
               {"ffn_gate_inp", "block_sparse_moe.gate"},
               {"ffn_gate_exps", "block_sparse_moe.experts.%.w1", Change::kExperts},
               {"ffn_up_exps", "block_sparse_moe.experts.%.w3", Change::kExperts},
               {"ffn_down_exps", "block_sparse_moe.experts.%.w2", Change::kExperts},
           }});

constexpr auto kGemma3 =
    joined(kPlusOneNorms, kAttention, kMlp,
           std::array<GgufTensorRow, 3>{{
               {"post_attention_norm", "post_attention_layernorm", Change::kPlusOne},
               {"ffn_norm", "pre_feedforward_layernorm", Change::kPlusOne},
               {"post_ffw_norm", "post_feedforward_layernorm", Change::kPlusOne},
           }});

constexpr auto kOlmo2 = joined(kAttention, kHeadNorms, kMlp,
                               std::array<GgufTensorRow, 2>{{
                                   {"post_attention_norm", "post_attention_layernorm"},
                                   {"post_ffw_norm", "post_feedforward_layernorm"},
                               }});

constexpr std::array<GgufTensorRow, 6> kPhi3{{
    {"attn_norm", "input_layernorm"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

// A delta net's own norm is stored as it is.
constexpr auto kQwen35 =
    joined(kPlusOneNorms, kAttention, kMlp, kExperts,
           std::array<GgufTensorRow, 13>{{
               {"attn_qkv", "linear_attn.in_proj_qkv", Change::kMixed},
               {"attn_gate", "linear_attn.in_proj_z", Change::kValueHeads},
               {"ssm_alpha", "linear_attn.in_proj_a", Change::kValueHeads},
               {"ssm_beta", "linear_attn.in_proj_b", Change::kValueHeads},
               {"ssm_conv1d", "linear_attn.conv1d", Change::kMixed},
               {"ssm_dt.bias", "linear_attn.dt_bias", Change::kValueHeads},
               {"ssm_a", "linear_attn.A_log", Change::kLogarithm},
               {"ssm_norm", "linear_attn.norm"},
               {"ssm_out", "linear_attn.out_proj", Change::kValueColumns},
               {"post_attention_norm", "post_attention_layernorm", Change::kPlusOne},
               {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
               {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
               {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
           }});

constexpr auto kQwen35Moe =
    joined(kQwen35, std::array<GgufTensorRow, 1>{{
                        {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", Change::kOneRow},
                    }});

constexpr auto kGptOss =
    joined(kNorms, kAttention,
           std::array<GgufTensorRow, 9>{{
               {"attn_sinks.weight", "self_attn.sinks"},
               {"post_attention_norm", "post_attention_layernorm"},
               {"ffn_gate_inp", "mlp.router"},
               {"ffn_gate_exps.weight", "mlp.experts.gate_up_proj_blocks", Change::kPairedExperts},
               {"ffn_up_exps.weight", "mlp.experts.gate_up_proj_blocks", Change::kPairedExperts},
               {"ffn_down_exps.weight", "mlp.experts.down_proj_blocks"},
               {"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias", Change::kPairedExperts},
               {"ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias", Change::kPairedExperts},
               {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
           }});

// Where experts are not MXFP4 (weights of another type would lose by what holds these exactly).
constexpr auto kGptOssOther =
    joined(kNorms, kAttention,
           std::array<GgufTensorRow, 9>{{
               {"attn_sinks.weight", "self_attn.sinks"},
               {"post_attention_norm", "post_attention_layernorm"},
               {"ffn_gate_inp", "mlp.router"},
               {"ffn_gate_exps.weight", "mlp.experts.%.gate_proj.weight", Change::kExperts},
               {"ffn_up_exps.weight", "mlp.experts.%.up_proj.weight", Change::kExperts},
               {"ffn_down_exps.weight", "mlp.experts.%.down_proj.weight", Change::kExperts},
               {"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias", Change::kPairedExperts},
               {"ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias", Change::kPairedExperts},
               {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
           }});

constexpr std::array<GgufTensorRow, 6> kGpt2{{
    {"attn_norm", "ln_1"},
    {"attn_qkv", "attn.c_attn", Change::kTransposed},
    {"attn_output", "attn.c_proj", Change::kTransposed},
    {"ffn_norm", "ln_2"},
    {"ffn_up", "mlp.c_fc", Change::kTransposed},
    {"ffn_down", "mlp.c_proj", Change::kTransposed},
}};

constexpr std::array kFamilies{
    GgufFamily{.gguf = "llama",
               .architecture = "LlamaForCausalLM",
               .keys = kKeys,
               .globals = kGlobals,
               .tensors = kLlama,
               .finish = finish_llama},
    GgufFamily{.gguf = "llama",
               .architecture = "MistralForCausalLM",
               .keys = kWindowKeys,
               .globals = kGlobals,
               .tensors = kLlama},
    GgufFamily{.gguf = "llama",
               .architecture = "MixtralForCausalLM",
               .keys = kMixtralKeys,
               .globals = kGlobals,
               .tensors = kMixtral},
    GgufFamily{.gguf = "qwen2",
               .architecture = "Qwen2ForCausalLM",
               .keys = kKeys,
               .globals = kGlobals,
               .tensors = kQwen},
    GgufFamily{.gguf = "qwen3",
               .architecture = "Qwen3ForCausalLM",
               .keys = kKeys,
               .globals = kGlobals,
               .tensors = kQwen,
               .finish = finish_qwen3},
    GgufFamily{.gguf = "qwen3moe",
               .architecture = "Qwen3MoeForCausalLM",
               .keys = kQwen3MoeKeys,
               .globals = kGlobals,
               .tensors = kQwen3Moe,
               .finish = finish_qwen3_moe},
    GgufFamily{.gguf = "gpt2",
               .architecture = "GPT2LMHeadModel",
               .layers = "transformer.h.",
               .keys = kGpt2Keys,
               .globals = kGpt2Globals,
               .tensors = kGpt2,
               .finish = finish_gpt2},
    GgufFamily{.gguf = "gemma3",
               .architecture = "Gemma3ForCausalLM",
               .keys = kWindowKeys,
               .globals = kPlusOneGlobals,
               .tensors = kGemma3,
               .finish = finish_gemma3},
    GgufFamily{.gguf = "phi3",
               .architecture = "Phi3ForCausalLM",
               .keys = kWindowKeys,
               .globals = kGlobals,
               .tensors = kPhi3},
    GgufFamily{.gguf = "olmo2",
               .architecture = "Olmo2ForCausalLM",
               .keys = kKeys,
               .globals = kGlobals,
               .tensors = kOlmo2},
    GgufFamily{.gguf = "smollm3",
               .architecture = "SmolLM3ForCausalLM",
               .keys = kKeys,
               .globals = kGlobals,
               .tensors = kLlama,
               .finish = finish_smollm3},
    GgufFamily{.gguf = "granite",
               .architecture = "GraniteForCausalLM",
               .keys = kGraniteKeys,
               .globals = kGlobals,
               .tensors = kLlama,
               .finish = finish_llama},
    GgufFamily{.gguf = "gpt-oss",
               .architecture = "GptOssForCausalLM",
               .keys = kGptOssKeys,
               .globals = kGlobals,
               .tensors = kGptOss,
               .finish = finish_gpt_oss},
    GgufFamily{.gguf = "qwen35",
               .architecture = "Qwen3_5ForCausalLM",
               .keys = kQwen35Keys,
               .globals = kPlusOneGlobals,
               .tensors = kQwen35,
               .finish = finish_qwen35},
    GgufFamily{.gguf = "qwen35moe",
               .architecture = "Qwen3_5MoeForCausalLM",
               .keys = kQwen35Keys,
               .globals = kPlusOneGlobals,
               .tensors = kQwen35Moe,
               .finish = finish_qwen35},
};

constexpr GgufFamily kGptOssOtherExperts{.gguf = "gpt-oss",
                                         .architecture = "GptOssForCausalLM",
                                         .keys = kGptOssKeys,
                                         .globals = kGlobals,
                                         .tensors = kGptOssOther,
                                         .finish = finish_gpt_oss};

const GgufFamily* find_family(std::string_view architecture) {
  for (const GgufFamily& family : kFamilies) {
    if (family.architecture == architecture) return &family;
  }
  return nullptr;
}

}  // namespace

Result<const GgufFamily*> find_gguf_family(const GgufHeader& header) {
  TANDEM_ASSIGN(const std::string given, header.text("general.architecture"));
  if (given.empty()) return invalid("key general.architecture: expected a name, found none");
  if (given == "llama") {
    TANDEM_ASSIGN(const auto experts, header.integer("llama.expert_count", 0, UINT32_MAX));
    if (experts.value_or(0) != 0) return find_family("MixtralForCausalLM");
    TANDEM_ASSIGN(const auto window,
                  header.integer("llama.attention.sliding_window", 0, UINT32_MAX));
    if (window.value_or(0) != 0) return find_family("MistralForCausalLM");
  }
  if (given == "gpt-oss") {
    const auto other = [](const GgufTensor& tensor) {
      return tensor.name.ends_with("_exps.weight") && tensor.dtype != DType::kMxfp4;
    };
    if (std::ranges::any_of(header.tensors, other)) return &kGptOssOtherExperts;
  }
  std::string known;
  for (const GgufFamily& family : kFamilies) {
    if (family.gguf == given) return &family;
    if (known.empty() || !known.ends_with(family.gguf)) {
      known += (known.empty() ? "" : ", ") + std::string(family.gguf);
    }
  }
  return unsupported("key general.architecture: " + printable(given, 40) +
                     " is not known; known are " + known);
}

}  // namespace tandem::weights
