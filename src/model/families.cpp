#include "model/families.h"

#include <array>

namespace tandem::model {
namespace {

constexpr Family kLlama{
    .architecture = "LlamaForCausalLM", .keys = {}, .names = {}, .bias = BiasRule::kConfig};

constexpr Family kMistral{.architecture = "MistralForCausalLM",
                          .keys = {},
                          .names = {},
                          .window = Family::Window::kAlways};

constexpr Family kQwen2{.architecture = "Qwen2ForCausalLM",
                        .keys = {},
                        .names = {},
                        .bias = BiasRule::kQueryKeyValue,
                        .window = Family::Window::kOptIn};

constexpr Family kQwen3{.architecture = "Qwen3ForCausalLM",
                        .keys = {},
                        .names = {},
                        .bias = BiasRule::kConfig,
                        .qk_norm = true,
                        .window = Family::Window::kOptIn};

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
};

constexpr ExpertRules kQwen3Experts{.normalize = ExpertRules::Normalize::kConfig,
                                    .sparse_step = true};

constexpr Family kQwen3Moe{.architecture = "Qwen3MoeForCausalLM",
                           .keys = {},
                           .names = {},
                           .bias = BiasRule::kConfig,
                           .qk_norm = true,
                           .window = Family::Window::kOptInAll,
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
                          .window = Family::Window::kIfGiven,
                          .experts = &kMixtralExperts,
                          .default_eps = 1e-5,
                          .default_theta = 1000000.0};

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
                         .experts = &kGptOssExperts,
                         .default_eps = 1e-5,
                         .default_theta = 150000.0,
                         .yarn_by_default = true,
                         .biased_by_default = true,
                         .sinks = "self_attn.sinks"};

constexpr std::array kFamilies = {kLlama, kMistral,  kQwen2,   kQwen3,
                                  kGpt2,  kQwen3Moe, kMixtral, kGptOss};

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
