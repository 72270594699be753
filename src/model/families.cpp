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

constexpr TensorNames kQwen35Names{.mixed = "linear_attn.in_proj_qkv",
                                   .delta_gate = "linear_attn.in_proj_z",
                                   .rate = "linear_attn.in_proj_b",
                                   .decay = "linear_attn.in_proj_a",
                                   .convolution = "linear_attn.conv1d",
                                   .log_decay = "linear_attn.A_log",
                                   .decay_bias = "linear_attn.dt_bias",
                                   .delta_norm = "linear_attn.norm",
                                   .delta_output = "linear_attn.out_proj"};

// Qwen3.5, 3.6 and 3.8: as a model of its own, and as the text model of one that also sees.
constexpr Family kQwen35{.architecture = "Qwen3_5ForCausalLM",
                         .keys = {},
                         .names = kQwen35Names,
                         .qk_norm = true,
                         .hybrid = true,
                         .drafting = "mtp."};

constexpr Family kQwen35Vision{.architecture = "Qwen3_5ForConditionalGeneration",
                               .keys = {},
                               .names = kQwen35Names,
                               .qk_norm = true,
                               .hybrid = true,
                               .inner_config = "text_config",
                               .inner_prefix = "model.language_model.",
                               .left_out = "model.visual.",
                               .drafting = "mtp."};

constexpr std::array kFamilies = {kLlama, kMistral, kQwen2, kQwen3, kGpt2, kQwen35, kQwen35Vision};

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
