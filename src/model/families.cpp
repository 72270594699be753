#include "model/families.h"

#include <array>

namespace tandem::model {
namespace {

constexpr Family kLlama{
    .architecture = "LlamaForCausalLM", .keys = {}, .names = {}, .bias = BiasRule::kConfig};

constexpr Family kMistral{.architecture = "MistralForCausalLM",
                          .keys = {},
                          .names = {},
                          .window = Family::Window::kAlways,
                          .defaults = {.window = 4096}};

constexpr Family kQwen2{.architecture = "Qwen2ForCausalLM",
                        .keys = {},
                        .names = {},
                        .bias = BiasRule::kQueryKeyValue,
                        .window = Family::Window::kOptIn,
                        .defaults = {.window = 4096}};

constexpr Family kQwen3{.architecture = "Qwen3ForCausalLM",
                        .keys = {},
                        .names = {},
                        .bias = BiasRule::kConfig,
                        .qk_norm = QueryKeyNorm::kHead,
                        .window = Family::Window::kOptIn,
                        .defaults = {.window = 4096}};

constexpr Family kGpt2{
    .architecture = "GPT2LMHeadModel",
    .keys = {.layers = "n_layer",
             .hidden_size = "n_embd",
             .intermediate_size = "n_inner",
             .heads = "n_head",
             .kv_heads = "",
             .head_dim = "",
             .context = "n_positions",
             .norm_eps = "layer_norm_epsilon",
             .activation = "activation_function"},
    .names = {.prefix = "transformer.",
              .embedding = "wte",
              .positions = "wpe",
              .layers = "h.",
              .final_norm = "ln_f",
              .attention_norm = "ln_1",
              .query = "",
              .key = "",
              .value = "",
              .query_key_value = "attn.c_attn",
              .query_norm = "",
              .key_norm = "",
              .output = "attn.c_proj",
              .mlp_norm = "ln_2",
              .gate = "",
              .up = "mlp.c_fc",
              .down = "mlp.c_proj"},
    .norm = NormKind::kLayer,
    .mlp = MlpKind::kGelu,
    .activation = "gelu_new",
    .bias = BiasRule::kAll,
    .rotary = false,
    .transposed = true,
    .tied_by_default = true,
    .defaults = {.norm_eps = 1e-5},
};

constexpr TensorNames kQwen35Names{.wrapped_prefixes = {"model.language_model.", ""},
                                   .mixed = "linear_attn.in_proj_qkv",
                                   .delta_gate = "linear_attn.in_proj_z",
                                   .rate = "linear_attn.in_proj_b",
                                   .decay = "linear_attn.in_proj_a",
                                   .convolution = "linear_attn.conv1d",
                                   .log_decay = "linear_attn.A_log",
                                   .decay_bias = "linear_attn.dt_bias",
                                   .delta_norm = "linear_attn.norm",
                                   .delta_output = "linear_attn.out_proj"};

constexpr std::array<std::string_view, 1> kQwen35Keys = {"partial_rotary_factor"};

constexpr ExpertRules kQwen35Experts{.shared_width = "shared_expert_intermediate_size"};

// Qwen3.5, 3.6 and 3.8: as a model of its own, and as the text model of one that also sees.
constexpr Family qwen35(std::string_view architecture, std::string_view text_config,
                        const ExpertRules* experts) {
  return {
      .architecture = architecture,
      .keys = {},
      .names = kQwen35Names,
      .qk_norm = QueryKeyNorm::kHead,
      .defaults = {.layers = experts == nullptr ? 32U : 40U,
                   .hidden_size = experts == nullptr ? 4096U : 2048U,
                   .intermediate_size = 12288,
                   .heads = 16,
                   .kv_heads = experts == nullptr ? 4U : 2U,
                   .head_dim = 256,
                   .vocab = 248320,
                   .context = 32768},
      .own_keys = kQwen35Keys,
      .text_config = text_config,
      .norm_plus_one = true,
      .partial_rotary = true,
      .experts = experts,
      .hybrid = true,
      .left_out = text_config.empty() ? "" : "model.visual.",
      .drafting = "mtp.",
  };
}

constexpr ExpertRules kQwen3Experts{.normalize = ExpertRules::Normalize::kConfig,
                                    .sparse_step = true};

constexpr Family kQwen3Moe{.architecture = "Qwen3MoeForCausalLM",
                           .keys = {},
                           .names = {},
                           .bias = BiasRule::kConfig,
                           .qk_norm = QueryKeyNorm::kHead,
                           .window = Family::Window::kOptInAll,
                           .defaults = {.layers = 24,
                                        .hidden_size = 2048,
                                        .intermediate_size = 6144,
                                        .heads = 32,
                                        .kv_heads = 4,
                                        .vocab = 151936,
                                        .context = 32768,
                                        .window = 4096},
                           .experts = &kQwen3Experts};

constexpr ExpertRules kMixtralExperts{.width = "intermediate_size",
                                      .router = "block_sparse_moe.gate",
                                      .experts = "block_sparse_moe.experts.",
                                      .gate = "w1",
                                      .up = "w3",
                                      .down = "w2"};

constexpr Family kMixtral{.architecture = "MixtralForCausalLM",
                          .keys = {},
                          .names = {},
                          .window = Family::Window::kAlways,
                          .defaults = {.layers = 32,
                                       .hidden_size = 4096,
                                       .intermediate_size = 14336,
                                       .heads = 32,
                                       .kv_heads = 8,
                                       .vocab = 32000,
                                       .context = 131072,
                                       .norm_eps = 1e-5,
                                       .theta = 1000000.0},
                          .experts = &kMixtralExperts};

constexpr ExpertRules kGptOssExperts{.width = "intermediate_size",
                                     .biases = true,
                                     .input_major = true,
                                     .clamped = true,
                                     .router = "mlp.router"};

constexpr Family kGptOss{.architecture = "GptOssForCausalLM",
                         .keys = {},
                         .names = {},
                         .bias = BiasRule::kConfig,
                         .window = Family::Window::kAlternating,
                         .defaults = {.layers = 36,
                                      .hidden_size = 2880,
                                      .intermediate_size = 2880,
                                      .heads = 64,
                                      .kv_heads = 8,
                                      .head_dim = 64,
                                      .vocab = 201088,
                                      .context = 131072,
                                      .norm_eps = 1e-5,
                                      .theta = 150000.0,
                                      .window = 128},
                         .experts = &kGptOssExperts,
                         .yarn_by_default = true,
                         .biased_by_default = true,
                         .sinks = "self_attn.sinks"};

constexpr std::array<std::string_view, 1> kGemma3Keys = {"query_pre_attn_scalar"};

constexpr Family gemma3(std::string_view architecture, std::string_view text_config) {
  return {
      .architecture = architecture,
      .keys = {.activation = "hidden_activation"},
      .names = {.wrapped_prefixes = {"language_model.model.", "model.language_model."},
                .mlp_norm = "pre_feedforward_layernorm",
                .attention_post = "post_attention_layernorm",
                .mlp_post = "post_feedforward_layernorm"},
      .mlp = MlpKind::kGatedGelu,
      .activation = "gelu_pytorch_tanh",
      .bias = BiasRule::kConfig,
      .qk_norm = QueryKeyNorm::kHead,
      .tied_by_default = true,
      .window = Family::Window::kPattern,
      .defaults = {.layers = 26,
                   .hidden_size = 2304,
                   .intermediate_size = 9216,
                   .heads = 8,
                   .kv_heads = 4,
                   .head_dim = 256,
                   .vocab = 262208,
                   .context = 131072,
                   .theta = 1e6,
                   .window = 4096},
      .own_keys = kGemma3Keys,
      .text_config = text_config,
      .norm_plus_one = true,
      .local_theta = 10000.0,
      .scaled_embedding = true,
      .query_scalar = true,
  };
}

constexpr std::array<std::string_view, 1> kPhi3Keys = {"partial_rotary_factor"};

constexpr Family kPhi3{
    .architecture = "Phi3ForCausalLM",
    .keys = {},
    .names = {.query = "",
              .key = "",
              .value = "",
              .query_key_value = "self_attn.qkv_proj",
              .gate = "",
              .up = "",
              .gate_up = "mlp.gate_up_proj"},
    .window = Family::Window::kAlways,
    .defaults = {.layers = 32,
                 .hidden_size = 3072,
                 .intermediate_size = 8192,
                 .heads = 32,
                 .vocab = 32064,
                 .context = 4096,
                 .norm_eps = 1e-5,
                 .original_context = 4096},
    .own_keys = kPhi3Keys,
    .partial_rotary = true,
};

constexpr Family kOlmo2{
    .architecture = "Olmo2ForCausalLM",
    .keys = {},
    .names = {.attention_norm = "",
              .mlp_norm = "",
              .attention_post = "post_attention_layernorm",
              .mlp_post = "post_feedforward_layernorm"},
    .bias = BiasRule::kConfig,
    .qk_norm = QueryKeyNorm::kProjection,
    .defaults = {.layers = 32,
                 .hidden_size = 4096,
                 .intermediate_size = 11008,
                 .heads = 32,
                 .vocab = 50304,
                 .context = 2048,
                 .norm_eps = 1e-5},
};

constexpr std::array<std::string_view, 1> kSmolLm3Keys = {"no_rope_layers"};

constexpr Family kSmolLm3{
    .architecture = "SmolLM3ForCausalLM",
    .keys = {},
    .names = {},
    .bias = BiasRule::kConfig,
    .tied_by_default = true,
    .window = Family::Window::kWithoutRope,
    .defaults = {.layers = 36,
                 .hidden_size = 2048,
                 .intermediate_size = 11008,
                 .heads = 16,
                 .kv_heads = 4,
                 .vocab = 128256,
                 .context = 32768,
                 .theta = 2e6},
    .own_keys = kSmolLm3Keys,
    .layers_without_rope = true,
};

constexpr std::array<std::string_view, 4> kGraniteKeys = {
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"};

constexpr Family kGranite{
    .architecture = "GraniteForCausalLM",
    .keys = {},
    .names = {},
    .bias = BiasRule::kConfig,
    .defaults = {.layers = 32,
                 .hidden_size = 4096,
                 .intermediate_size = 11008,
                 .heads = 32,
                 .vocab = 32000,
                 .context = 2048},
    .own_keys = kGraniteKeys,
    .multipliers = true,
};

constexpr std::array kFamilies = {
    kLlama,
    kMistral,
    kQwen2,
    kQwen3,
    kGpt2,
    gemma3("Gemma3ForCausalLM", ""),
    gemma3("Gemma3ForConditionalGeneration", "text_config"),
    kPhi3,
    kOlmo2,
    kSmolLm3,
    kGranite,
    kQwen3Moe,
    kMixtral,
    kGptOss,
    qwen35("Qwen3_5ForCausalLM", "", nullptr),
    qwen35("Qwen3_5ForConditionalGeneration", "text_config", nullptr),
    qwen35("Qwen3_5MoeForCausalLM", "", &kQwen35Experts),
    qwen35("Qwen3_5MoeForConditionalGeneration", "text_config", &kQwen35Experts),
};

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

const Family* find_family(std::string_view architecture) {
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return &family;
  }
  return nullptr;
}

}  // namespace tandem::model
