#include "model/variants.h"

#include <algorithm>
#include <cmath>

namespace tandem::model {
namespace {

// What every config here says unless it says otherwise.
std::string config(const std::string& architecture, const std::string& rest) {
  return R"({"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128,
             "max_position_embeddings": 512, "architectures": [")" +
         architecture + "\"], " + rest + "}";
}

std::vector<double> divided(std::vector<double> values, const std::vector<double>& by) {
  for (size_t i = 0; i < values.size(); ++i) values[i] /= by[i % by.size()];
  return values;
}

Variant gemma_old() {
  Variant v;
  v.name = "GemmaOldForm";
  v.config = config("Gemma3ForCausalLM", R"(
      "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24, "hidden_size": 72,
      "sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 40,
      "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 50000.0,
      "rope_local_base_freq": 300.0, "tie_word_embeddings": false, "attention_bias": true,
      "torch_dtype": "bfloat16", "hidden_activation": "gelu_pytorch_tanh")");
  PlainModel& p = v.plain;
  p.heads = 3;
  p.kv_heads = 1;
  p.dim = 24;
  p.hidden = 72;
  p.norms = PlainModel::Norms::kBoth;
  p.qk_norm = PlainModel::QkNorm::kHead;
  p.plus_one = p.gelu = p.attention_bias = true;
  p.embedding = 8.5;  // sqrt(72) in bfloat16
  p.scale = 1 / std::sqrt(40.0);
  v.ropes = {{divided(plain_frequencies(50000, 24), {8.0}), {}}, {plain_frequencies(300, 24), {}}};
  v.layer_rope = {1, 0, 1, 0};
  v.window = {5, 0, 5, 0};
  return v;
}

Variant gemma_wrapped() {
  Variant v;
  v.name = "GemmaWrapped";
  v.config = R"({"architectures": ["Gemma3ForConditionalGeneration"], "dtype": "float32",
      "vision_config": {"hidden_size": 1152}, "text_config": {
      "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128,
      "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "sliding_window": 7,
      "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
      "rope_parameters": {"full_attention": {"rope_type": "default"},
                          "sliding_attention": {"rope_type": "linear", "factor": 2.0}}}})";
  PlainModel& p = v.plain;
  p.prefix = "model.language_model.";
  p.kv_heads = 4;
  p.dim = 8;
  p.norms = PlainModel::Norms::kBoth;
  p.qk_norm = PlainModel::QkNorm::kHead;
  p.plus_one = p.gelu = p.tied = true;
  p.embedding = 8;
  p.scale = 1 / 16.0;
  v.ropes = {{plain_frequencies(1e6, 8), {}}, {divided(plain_frequencies(1e4, 8), {2.0}), {}}};
  v.layer_rope = {0, 1, 0, 1};
  v.window = {0, 7, 0, 7};
  return v;
}

Variant phi(const char* name, uint32_t original) {
  Variant v;
  v.name = name;
  v.config = config("Phi3ForCausalLM", R"(
      "num_attention_heads": 4, "num_key_value_heads": 2, "partial_rotary_factor": 0.75,
      "rms_norm_eps": 1e-5, "original_max_position_embeddings": )" +
                                           std::to_string(original) + R"(,
      "sliding_window": 20, "tie_word_embeddings": true, "rope_scaling": {"type": "longrope",
      "short_factor": [1, 1.25, 1.5, 2, 3, 4], "long_factor": [1, 2, 5, 8, 16, 32]})");
  PlainModel& p = v.plain;
  p.eps = 1e-5;
  p.fused = p.tied = true;
  p.far_from = original;
  const auto plain = plain_frequencies(10000, 12);
  const double more = std::log(512.0 / original) / std::log(original);
  v.ropes = {{divided(plain, {1, 1.25, 1.5, 2, 3, 4}), divided(plain, {1, 2, 5, 8, 16, 32}),
              std::sqrt(1 + more)}};
  v.window.assign(4, 20);
  return v;
}

Variant olmo() {
  Variant v;
  v.name = "OlmoLlama3Rope";
  v.config = config("Olmo2ForCausalLM", R"(
      "num_attention_heads": 4, "head_dim": 32, "attention_bias": true, "rope_theta": 500.0,
      "tie_word_embeddings": true, "rope_scaling": {"rope_type": "llama3", "factor": 4.0,
      "low_freq_factor": 1.0, "high_freq_factor": 2.0, "original_max_position_embeddings": 64})");
  PlainModel& p = v.plain;
  p.kv_heads = 4;
  p.dim = 32;
  p.eps = 1e-5;
  p.norms = PlainModel::Norms::kAfter;
  p.qk_norm = PlainModel::QkNorm::kWhole;
  p.attention_bias = p.tied = true;
  p.scale = 1 / std::sqrt(32.0);
  auto frequencies = plain_frequencies(500, 32);
  for (double& f : frequencies) {
    const double wave = 2 * M_PI / f;
    const double smooth = std::clamp(64 / wave - 1, 0.0, 1.0);
    f = (1 - smooth) * f / 4 + smooth * f;
  }
  v.ropes = {{frequencies, {}}};
  return v;
}

Variant smollm() {
  Variant v;
  v.name = "SmolWindowsAndYarn";
  v.config = config("SmolLM3ForCausalLM", R"(
      "num_attention_heads": 2, "num_key_value_heads": 1, "no_rope_layer_interval": 2,
      "use_sliding_window": true, "sliding_window": 9, "attention_bias": true, "mlp_bias": true,
      "tie_word_embeddings": false, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000.0,
      "factor": 4.0, "original_max_position_embeddings": 128})");
  PlainModel& p = v.plain;
  p.heads = 2;
  p.kv_heads = 1;
  p.dim = 32;
  p.attention_bias = p.mlp_bias = true;
  p.scale = 1 / std::sqrt(32.0);
  const auto place = [](double turns) {
    return 32 * std::log(128 / (turns * 2 * M_PI)) / (2 * std::log(1000.0));
  };
  const double low = std::max(std::floor(place(32)), 0.0);
  const double high = std::min(std::ceil(place(1)), 31.0);
  auto frequencies = plain_frequencies(1000, 32);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / 4 * ramp + frequencies[i] * (1 - ramp);
  }
  v.ropes = {{frequencies, {}, 0.1 * std::log(4.0) + 1}};
  v.layer_rope = {0, -1, 0, -1};
  v.window = {0, 9, 0, 9};
  return v;
}

Variant granite() {
  Variant v;
  v.name = "GraniteBiases";
  v.config = config("GraniteForCausalLM", R"(
      "num_attention_heads": 8, "num_key_value_heads": 2, "attention_bias": true, "mlp_bias": true,
      "embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.15,
      "logits_scaling": 6, "rope_theta": 5000, "tie_word_embeddings": true,
      "rope_scaling": {"type": "linear", "factor": 2})");
  PlainModel& p = v.plain;
  p.heads = 8;
  p.dim = 8;
  p.attention_bias = p.mlp_bias = p.tied = true;
  p.embedding = 12;
  p.residual = 0.22;
  p.scale = 0.15;
  p.logits = 1 / 6.0;
  v.ropes = {{divided(plain_frequencies(5000, 8), {2.0}), {}}};
  return v;
}

// Of the families that the reference models show in one shape each.
Variant llama() {
  Variant v;
  v.name = "LlamaBiases";
  v.config = config("LlamaForCausalLM", R"(
      "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20, "hidden_size": 72,
      "attention_bias": true, "mlp_bias": true, "rope_theta": 500.0, "rms_norm_eps": 1e-5)");
  PlainModel& p = v.plain;
  p.heads = 6;
  p.kv_heads = 3;
  p.dim = 20;
  p.hidden = 72;
  p.eps = 1e-5;
  p.attention_bias = p.mlp_bias = true;
  p.scale = 1 / std::sqrt(20.0);
  v.ropes = {{plain_frequencies(500, 20), {}}};
  return v;
}

Variant mistral() {
  Variant v;
  v.name = "MistralNarrowWindow";
  v.config = config("MistralForCausalLM", R"(
      "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 24, "sliding_window": 3,
      "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": true)");
  PlainModel& p = v.plain;
  p.heads = 5;
  p.kv_heads = 1;
  p.dim = 24;
  p.eps = 1e-5;
  p.tied = true;
  p.scale = 1 / std::sqrt(24.0);
  v.ropes = {{plain_frequencies(10000, 24), {}}};
  v.window.assign(4, 3);
  return v;
}

Variant qwen2() {
  Variant v;
  v.name = "Qwen2Untied";
  v.config = config("Qwen2ForCausalLM", R"(
      "num_attention_heads": 8, "num_key_value_heads": 8, "rope_theta": 1000000.0,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "use_sliding_window": true,
      "sliding_window": 6, "max_window_layers": 1)");
  PlainModel& p = v.plain;
  p.heads = p.kv_heads = 8;
  p.dim = 8;
  p.attention_bias = true;
  p.output_bias = false;
  p.scale = 1 / std::sqrt(8.0);
  v.ropes = {{plain_frequencies(1e6, 8), {}}};
  v.window = {0, 6, 6, 6};
  return v;
}

Variant qwen3() {
  Variant v;
  v.name = "Qwen3TiedWide";
  v.config = config("Qwen3ForCausalLM", R"(
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "rope_theta": 1000000.0,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": true)");
  PlainModel& p = v.plain;
  p.heads = 2;
  p.kv_heads = 1;
  p.dim = 64;
  p.qk_norm = PlainModel::QkNorm::kHead;
  p.tied = true;
  p.scale = 1 / 8.0;
  v.ropes = {{plain_frequencies(1e6, 64), {}}};
  return v;
}

Variant qwen3_moe(const char* name, bool normalize) {
  Variant v;
  v.name = name;
  v.config = config(
      "Qwen3MoeForCausalLM",
      R"("num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 7,
      "num_experts_per_tok": 3, "moe_intermediate_size": 40, "rope_theta": 1000000.0,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "decoder_sparse_step": )" +
          std::string(normalize ? R"(1, "norm_topk_prob": true)"
                                : R"(2, "norm_topk_prob": false)"));
  PlainModel& p = v.plain;
  p.qk_norm = PlainModel::QkNorm::kHead;
  p.experts.count = 7;
  p.experts.chosen = 3;
  p.experts.width = 40;
  p.experts.normalize = normalize;
  p.experts.every_other = !normalize;
  v.ropes = {{plain_frequencies(1e6, 16), {}}};
  return v;
}

Variant mixtral() {
  Variant v;
  v.name = "MixtralOfThree";
  v.config = config("MixtralForCausalLM", R"(
      "num_attention_heads": 4, "num_key_value_heads": 1, "num_local_experts": 3,
      "num_experts_per_tok": 1, "rope_theta": 1000000.0, "rms_norm_eps": 1e-5,
      "sliding_window": 11, "tie_word_embeddings": false)");
  PlainModel& p = v.plain;
  p.kv_heads = 1;
  p.eps = 1e-5;
  p.experts.count = 3;
  p.experts.chosen = 1;
  p.experts.width = 96;
  p.experts.base = "block_sparse_moe.";
  p.experts.gate = "w1";
  p.experts.up = "w3";
  p.experts.down = "w2";
  v.ropes = {{plain_frequencies(1e6, 16), {}}};
  v.window.assign(4, 11);
  return v;
}

Variant hybrid(const char* name, bool experts) {
  Variant v;
  v.name = name;
  const std::string more =
      experts ? R"("num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                   "shared_expert_intermediate_size": 40,)"
              : "";
  v.config = config(experts ? "Qwen3_5MoeForCausalLM" : "Qwen3_5ForCausalLM", more + R"(
      "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24,
      "linear_conv_kernel_dim": 3, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
      "linear_num_key_heads": 2, "linear_num_value_heads": 6, "rms_norm_eps": 1e-6,
      "hidden_act": "silu", "tie_word_embeddings": false,
      "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                          "partial_rotary_factor": 0.5})");
  PlainModel& p = v.plain;
  p.heads = 3;
  p.kv_heads = 1;
  p.dim = 24;
  p.qk_norm = PlainModel::QkNorm::kHead;
  p.plus_one = p.gated = true;
  p.delta = {2, 6, 16, 32, 3};
  p.recurrent = {true, false, true, false};
  p.scale = 1 / std::sqrt(24.0);
  if (experts) {
    p.experts.count = 5;
    p.experts.chosen = 2;
    p.experts.width = 24;
    p.experts.shared = 40;
  }
  v.ropes = {{plain_frequencies(10000, 12), {}}};
  return v;
}

}  // namespace

std::vector<Variant> variants() {
  return {gemma_old(),
          gemma_wrapped(),
          phi("PhiShort", 256),
          phi("PhiLong", 16),
          olmo(),
          smollm(),
          granite(),
          llama(),
          mistral(),
          qwen2(),
          qwen3(),
          qwen3_moe("Qwen3MoeOfSeven", true),
          qwen3_moe("Qwen3MoeSparse", false),
          mixtral(),
          hybrid("HybridOddHeads", false),
          hybrid("HybridOfFive", true)};
}

std::vector<Variant> reference_models() {
  constexpr const char* names[] = {"gemma3",  "phi3",      "olmo2",   "smollm3",
                                   "granite", "qwen3_moe", "mixtral", "qwen3_5_moe"};
  std::vector<Variant> all(std::size(names));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].name = names[i];
    all[i].plain.inner = 160;
    all[i].plain.vocab = 512;
    all[i].ropes = {{plain_frequencies(10000, 16), {}}};
  }
  PlainModel& gemma = all[0].plain;
  gemma.dim = 32;
  gemma.norms = PlainModel::Norms::kBoth;
  gemma.qk_norm = PlainModel::QkNorm::kHead;
  gemma.plus_one = gemma.gelu = gemma.tied = true;
  gemma.embedding = 8;
  gemma.scale = 1 / std::sqrt(32.0);
  all[0].ropes = {{plain_frequencies(10000, 32), {}}, {plain_frequencies(1e6, 32), {}}};
  all[0].layer_rope = {0, 0, 0, 1};
  all[0].window = {16, 16, 16, 0};
  all[1].plain.fused = true;
  all[1].plain.eps = all[2].plain.eps = 1e-5;
  all[2].plain.norms = PlainModel::Norms::kAfter;
  all[2].plain.qk_norm = PlainModel::QkNorm::kWhole;
  all[3].ropes = {{plain_frequencies(2e6, 16), {}}};
  all[3].layer_rope = {0, 0, 0, -1};
  PlainModel& granite = all[4].plain;
  granite.embedding = 2;
  granite.residual = 0.5;
  granite.scale = 0.2;
  granite.logits = 0.5;
  PlainModel& moe = all[5].plain;
  moe.dim = 32;
  moe.qk_norm = PlainModel::QkNorm::kHead;
  moe.scale = 1 / std::sqrt(32.0);
  moe.experts.count = 8;
  moe.experts.chosen = 2;
  moe.experts.width = 48;
  all[5].ropes = {{plain_frequencies(10000, 32), {}}};
  PlainModel& mixture = all[6].plain;
  mixture.eps = 1e-5;
  mixture.experts = mixtral().plain.experts;
  mixture.experts.count = 4;
  mixture.experts.chosen = 2;
  mixture.experts.width = 160;
  all[6].ropes = {{plain_frequencies(1e6, 16), {}}};
  PlainModel& hybrid = all[7].plain;
  hybrid = moe;
  hybrid.plus_one = hybrid.gated = true;
  hybrid.delta = {2, 4, 16, 16, 4};
  hybrid.recurrent = {true, true, true, false};
  hybrid.experts.width = hybrid.experts.shared = 32;
  all[7].ropes = {{plain_frequencies(10000, 8), {}}};
  return all;
}

std::pair<double, double> error(const std::vector<double>& wanted, const std::vector<double>& had) {
  double mean = 0;
  for (const double value : wanted) mean += value / static_cast<double>(wanted.size());
  double variance = 0;
  double squares = 0;
  double largest = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    variance += (wanted[i] - mean) * (wanted[i] - mean);
    squares += (had[i] - wanted[i]) * (had[i] - wanted[i]);
    largest = std::max(largest, std::fabs(had[i] - wanted[i]));
  }
  return {std::sqrt(squares / variance),
          largest / std::sqrt(variance / static_cast<double>(wanted.size()))};
}

}  // namespace tandem::model
