#include "checkpoint_maker/shapes.h"

#include <cmath>

#include "checkpoint_maker/hybrid.h"

namespace tandem::tools {

namespace {

using nlohmann::ordered_json;

Shape llama3(std::string_view name, uint64_t layers, uint64_t hidden, uint64_t heads,
             uint64_t head_dim, uint64_t intermediate, bool tied, double factor) {
  return {.name = name,
          .family = Family::kLlama,
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = head_dim,
          .intermediate = intermediate,
          .vocab = 128256,
          .context = 131072,
          .rope_theta = 500000.0,
          .tied = tied,
          .rope_factor = factor,
          .bos = 128000,
          .end_of_text = 128001,
          .im_start = 128006,
          .im_end = 128009,
          .eos = {128001, 128008, 128009}};
}

Shape llama2(std::string_view name, uint64_t layers, uint64_t hidden, uint64_t kv_heads,
             uint64_t intermediate, uint64_t context) {
  return {.name = name,
          .family = Family::kLlama,
          .layers = layers,
          .hidden = hidden,
          .heads = 32,
          .kv_heads = kv_heads,
          .head_dim = hidden / 32,
          .intermediate = intermediate,
          .vocab = 32000,
          .context = context,
          .bos = 1,
          .end_of_text = 0,
          .im_start = 3,
          .im_end = 2};
}

Shape smollm2(std::string_view name, uint64_t layers, uint64_t hidden, uint64_t heads,
              uint64_t kv_heads, uint64_t intermediate, double theta) {
  return {.name = name,
          .family = Family::kLlama,
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 64,
          .intermediate = intermediate,
          .vocab = 49152,
          .context = 8192,
          .rope_theta = theta,
          .tied = true};
}

Shape qwen(std::string_view name, Family family, uint64_t layers, uint64_t hidden, uint64_t heads,
           uint64_t kv_heads, uint64_t head_dim, uint64_t intermediate, bool tied) {
  return {.name = name,
          .family = family,
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .intermediate = intermediate,
          .vocab = 151936,
          .context = family == Family::kQwen3 ? 40960u : 32768u,
          .rope_theta = 1000000.0,
          .eps = 1e-6,
          .tied = tied,
          .end_of_text = 151643,
          .im_start = 151644,
          .im_end = 151645,
          .eos = {151645}};
}

/// A mixture of experts of OLMoE's sizes, as Qwen3-MoE: about 7 billion weights, of which a token
/// uses 1.1 billion.
Shape qwen3_moe() {
  Shape shape = qwen("qwen3-moe-7b-a1b", Family::kQwen3Moe, 16, 2048, 16, 16, 128, 8192, false);
  shape.vocab = 50304;
  shape.end_of_text = 50279;
  shape.im_start = 50280;
  shape.im_end = 50281;
  shape.eos = {50281};
  shape.experts = 64;
  shape.chosen = 8;
  shape.width = 1024;
  return shape;
}

/// Small and ragged: no width but the heads' is a multiple of 64, the vocabulary is odd.
Shape tiny(std::string_view name, Family family, uint64_t layers, uint64_t heads, uint64_t kv_heads,
           uint64_t head_dim, bool tied) {
  return {.name = name,
          .family = family,
          .layers = layers,
          .hidden = 96,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .intermediate = 200,
          .vocab = 515,
          .context = 512,
          .tied = tied};
}

std::vector<Shape> make_shapes() {
  std::vector<Shape> all;
  all.push_back(qwen("qwen3-0.6b", Family::kQwen3, 28, 1024, 16, 8, 128, 3072, true));
  all.push_back(qwen("qwen3-1.7b", Family::kQwen3, 28, 2048, 16, 8, 128, 6144, true));
  all.push_back(qwen("qwen3-4b", Family::kQwen3, 36, 2560, 32, 8, 128, 9728, true));
  all.push_back(qwen("qwen3-8b", Family::kQwen3, 36, 4096, 32, 8, 128, 12288, false));
  all.push_back(qwen3_moe());
  all.push_back(qwen("qwen2.5-0.5b", Family::kQwen2, 24, 896, 14, 2, 64, 4864, true));
  all.push_back(qwen("qwen2.5-1.5b", Family::kQwen2, 28, 1536, 12, 2, 128, 8960, true));
  Shape hybrid = qwen("qwen3.5-0.8b", Family::kHybrid, 24, 1024, 8, 2, 256, 3584, true);
  hybrid.vocab = 248320;
  hybrid.context = 262144;
  hybrid.rope_theta = 10000000.0;
  hybrid.delta = {.key_heads = 16, .value_heads = 16};
  all.push_back(hybrid);
  all.push_back(llama3("llama-3.2-1b", 16, 2048, 32, 64, 8192, true, 32));
  all.push_back(llama3("llama-3.2-3b", 28, 3072, 24, 128, 8192, true, 32));
  all.push_back(llama3("llama-3.1-8b", 32, 4096, 32, 128, 14336, false, 8));
  all.push_back(llama2("llama-2-7b", 32, 4096, 32, 11008, 4096));
  all.push_back(llama2("tinyllama-1.1b", 22, 2048, 4, 5632, 2048));
  all.push_back(smollm2("smollm2-135m", 30, 576, 9, 3, 1536, 100000));
  all.push_back(smollm2("smollm2-360m", 32, 960, 15, 5, 2560, 100000));
  all.push_back(smollm2("smollm2-1.7b", 24, 2048, 32, 32, 8192, 130000));
  Shape mistral = llama2("mistral-7b-v0.1", 32, 4096, 8, 14336, 32768);
  mistral.family = Family::kMistral;
  mistral.sliding_window = 4096;
  all.push_back(mistral);
  all.push_back({.name = "gpt2",
                 .family = Family::kGpt2,
                 .layers = 12,
                 .hidden = 768,
                 .heads = 12,
                 .kv_heads = 12,
                 .head_dim = 64,
                 .intermediate = 3072,
                 .vocab = 50257,
                 .context = 1024,
                 .tied = true,
                 .end_of_text = 50256,
                 .im_start = 50254,
                 .im_end = 50255,
                 .eos = {50256, 50255}});

  Shape llama = tiny("tiny-llama", Family::kLlama, 4, 6, 2, 16, false);
  llama.rope_theta = 500000.0;
  llama.rope_factor = 8;
  llama.rope_context = 64;
  all.push_back(llama);
  all.push_back(tiny("tiny-qwen2", Family::kQwen2, 3, 3, 1, 32, true));
  all.push_back(tiny("tiny-qwen3", Family::kQwen3, 5, 4, 2, 32, false));
  Shape moe = tiny("tiny-qwen3-moe", Family::kQwen3Moe, 4, 4, 2, 32, false);
  moe.experts = 11;
  moe.chosen = 3;
  moe.width = 40;
  moe.sparse_step = 2;
  all.push_back(moe);
  Shape window = tiny("tiny-mistral", Family::kMistral, 6, 12, 4, 8, false);
  window.sliding_window = 16;
  all.push_back(window);
  Shape gpt2 = tiny("tiny-gpt2", Family::kGpt2, 2, 6, 6, 16, true);
  gpt2.context = 256;
  all.push_back(gpt2);
  hybrid = tiny("tiny-qwen3.5", Family::kHybrid, 5, 4, 2, 16, true);
  hybrid.delta = {.key_heads = 2, .value_heads = 6, .key_dim = 16, .value_dim = 32, .kernel = 4};
  hybrid.wrapped = true;
  all.push_back(hybrid);
  return all;
}

ordered_json gpt2_config(const Shape& shape) {
  return {{"activation_function", "gelu_new"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"attn_pdrop", 0.1},
          {"bos_token_id", shape.end_of_text},
          {"embd_pdrop", 0.1},
          {"eos_token_id", shape.eos.front()},
          {"initializer_range", 0.02},
          {"layer_norm_epsilon", shape.eps},
          {"model_type", "gpt2"},
          {"n_ctx", shape.context},
          {"n_embd", shape.hidden},
          {"n_head", shape.heads},
          // Null stands for 4 * n_embd, as in the published file.
          {"n_inner", shape.intermediate == 4 * shape.hidden ? ordered_json(nullptr)
                                                             : ordered_json(shape.intermediate)},
          {"n_layer", shape.layers},
          {"n_positions", shape.context},
          {"reorder_and_upcast_attn", false},
          {"resid_pdrop", 0.1},
          {"scale_attn_by_inverse_layer_idx", false},
          {"scale_attn_weights", true},
          {"summary_activation", nullptr},
          {"summary_first_dropout", 0.1},
          {"summary_proj_to_labels", true},
          {"summary_type", "cls_index"},
          {"summary_use_proj", true},
          {"torch_dtype", "bfloat16"},
          {"transformers_version", "4.51.0"},
          {"use_cache", true},
          {"vocab_size", shape.vocab}};
}

/// Appends the tensors of one model; keeps names and scales in one place.
class Builder {
 public:
  void add(const std::string& name, std::vector<uint64_t> shape, Values values) {
    list_.push_back({{name, weights::DType::kBF16, std::move(shape)}, values});
  }
  /// A matrix [rows, columns] whose product with inputs of size 1 has size `gain`.
  void matrix(const std::string& name, uint64_t rows, uint64_t columns, uint64_t inputs,
              double gain = 1) {
    add(name, {rows, columns}, {0, gain / std::sqrt(static_cast<double>(inputs))});
  }
  void norm(const std::string& name, uint64_t size) { add(name, {size}, {1, 0.1}); }
  void bias(const std::string& name, uint64_t size) { add(name, {size}, {0, 0.1}); }
  std::vector<MadeTensor> take() { return std::move(list_); }

 private:
  std::vector<MadeTensor> list_;
};

std::vector<MadeTensor> gpt2_tensors(const Shape& shape, double residual) {
  Builder builder;
  const uint64_t hidden = shape.hidden;
  builder.add("transformer.wte.weight", {shape.vocab, hidden}, {0, 0.02});
  builder.add("transformer.wpe.weight", {shape.context, hidden}, {0, 0.01});
  for (uint64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "transformer.h." + std::to_string(layer) + ".";
    builder.norm(prefix + "ln_1.weight", hidden);
    builder.bias(prefix + "ln_1.bias", hidden);
    // Stored input-major: [in, out].
    builder.matrix(prefix + "attn.c_attn.weight", hidden, 3 * hidden, hidden);
    builder.bias(prefix + "attn.c_attn.bias", 3 * hidden);
    builder.matrix(prefix + "attn.c_proj.weight", hidden, hidden, hidden, residual);
    builder.bias(prefix + "attn.c_proj.bias", hidden);
    builder.norm(prefix + "ln_2.weight", hidden);
    builder.bias(prefix + "ln_2.bias", hidden);
    builder.matrix(prefix + "mlp.c_fc.weight", hidden, shape.intermediate, hidden);
    builder.bias(prefix + "mlp.c_fc.bias", shape.intermediate);
    builder.matrix(prefix + "mlp.c_proj.weight", shape.intermediate, hidden, shape.intermediate,
                   residual);
    builder.bias(prefix + "mlp.c_proj.bias", hidden);
  }
  builder.norm("transformer.ln_f.weight", hidden);
  builder.bias("transformer.ln_f.bias", hidden);
  return builder.take();
}

}  // namespace

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = make_shapes();
  return all;
}

const Shape* find_shape(std::string_view name) {
  for (const Shape& shape : shapes()) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

ordered_json config_json(const Shape& shape) {
  if (shape.family == Family::kGpt2) return gpt2_config(shape);
  if (shape.family == Family::kHybrid) return hybrid_config(shape);
  const bool qwen2 = shape.family == Family::kQwen2;
  const bool moe = shape.family == Family::kQwen3Moe;
  const bool qwen3 = shape.family == Family::kQwen3 || moe;
  const bool llama = shape.family == Family::kLlama;
  ordered_json config;
  config["architectures"] = {llama   ? "LlamaForCausalLM"
                             : qwen2 ? "Qwen2ForCausalLM"
                             : moe   ? "Qwen3MoeForCausalLM"
                             : qwen3 ? "Qwen3ForCausalLM"
                                     : "MistralForCausalLM"};
  if (llama || qwen3) config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  config["bos_token_id"] = shape.bos ? *shape.bos : shape.end_of_text;
  config["eos_token_id"] =
      shape.eos.size() == 1 ? ordered_json(shape.eos.front()) : ordered_json(shape.eos);
  // Published Llama 2, Mistral 7B and Qwen2.5 files leave head_dim to hidden_size / heads.
  if (qwen3 || shape.rope_factor > 0 || shape.head_dim * shape.heads != shape.hidden) {
    config["head_dim"] = shape.head_dim;
  }
  config["hidden_act"] = "silu";
  config["hidden_size"] = shape.hidden;
  config["initializer_range"] = 0.02;
  config["intermediate_size"] = shape.intermediate;
  config["max_position_embeddings"] = shape.context;
  if (qwen2 || qwen3) config["max_window_layers"] = shape.layers;
  if (llama) config["mlp_bias"] = false;
  config["model_type"] = llama   ? "llama"
                         : qwen2 ? "qwen2"
                         : moe   ? "qwen3_moe"
                         : qwen3 ? "qwen3"
                                 : "mistral";
  config["num_attention_heads"] = shape.heads;
  config["num_hidden_layers"] = shape.layers;
  config["num_key_value_heads"] = shape.kv_heads;
  if (llama) config["pretraining_tp"] = 1;
  config["rms_norm_eps"] = shape.eps;
  if (shape.rope_factor > 0) {
    config["rope_scaling"] = {{"factor", shape.rope_factor},
                              {"high_freq_factor", 4.0},
                              {"low_freq_factor", 1.0},
                              {"original_max_position_embeddings", shape.rope_context},
                              {"rope_type", "llama3"}};
  } else if (llama || qwen3) {
    config["rope_scaling"] = nullptr;
  }
  config["rope_theta"] = shape.rope_theta;
  if (shape.sliding_window > 0) {
    config["sliding_window"] = shape.sliding_window;
  } else if (qwen2) {
    config["sliding_window"] = shape.context;  // there, but use_sliding_window turns it off
  } else if (qwen3) {
    config["sliding_window"] = nullptr;
  }
  config["tie_word_embeddings"] = shape.tied;
  config["torch_dtype"] = "bfloat16";
  config["transformers_version"] = "4.51.0";
  config["use_cache"] = true;
  if (qwen2 || qwen3) config["use_sliding_window"] = false;
  if (moe) {
    config["decoder_sparse_step"] = shape.sparse_step;
    config["mlp_only_layers"] = nlohmann::json::array();
    config["moe_intermediate_size"] = shape.width;
    config["norm_topk_prob"] = true;
    config["num_experts"] = shape.experts;
    config["num_experts_per_tok"] = shape.chosen;
    config["output_router_logits"] = false;
    config["router_aux_loss_coef"] = 0.001;
  }
  config["vocab_size"] = shape.vocab;
  return config;
}

std::vector<MadeTensor> tensors(const Shape& shape) {
  // Two sums into the residual a layer: this factor keeps their total near 1 (as in GPT-2's paper).
  const double residual = 1 / std::sqrt(2.0 * static_cast<double>(shape.layers));
  if (shape.family == Family::kGpt2) return gpt2_tensors(shape, residual);
  if (shape.family == Family::kHybrid) return hybrid_tensors(shape);
  Builder builder;
  const uint64_t hidden = shape.hidden;
  const uint64_t query = shape.heads * shape.head_dim;
  const uint64_t key = shape.kv_heads * shape.head_dim;
  builder.add("model.embed_tokens.weight", {shape.vocab, hidden}, {0, 0.02});
  for (uint64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = prefix + "self_attn.";
    builder.norm(prefix + "input_layernorm.weight", hidden);
    for (const auto& [name, rows] :
         {std::pair{"q_proj", query}, {"k_proj", key}, {"v_proj", key}}) {
      builder.matrix(attention + name + ".weight", rows, hidden, hidden);
      if (shape.family == Family::kQwen2) builder.bias(attention + name + ".bias", rows);
    }
    if (shape.family == Family::kQwen3 || shape.family == Family::kQwen3Moe) {
      builder.norm(attention + "q_norm.weight", shape.head_dim);
      builder.norm(attention + "k_norm.weight", shape.head_dim);
    }
    builder.matrix(attention + "o_proj.weight", hidden, query, query, residual);
    builder.norm(prefix + "post_attention_layernorm.weight", hidden);
    const auto mlp = [&](const std::string& own, uint64_t width) {
      builder.matrix(own + "gate_proj.weight", width, hidden, hidden);
      builder.matrix(own + "up_proj.weight", width, hidden, hidden);
      builder.matrix(own + "down_proj.weight", hidden, width, width, residual);
    };
    if (shape.experts == 0 || (layer + 1) % shape.sparse_step != 0) {
      mlp(prefix + "mlp.", shape.intermediate);
      continue;
    }
    builder.matrix(prefix + "mlp.gate.weight", shape.experts, hidden, hidden);
    for (uint64_t expert = 0; expert < shape.experts; ++expert) {
      mlp(prefix + "mlp.experts." + std::to_string(expert) + ".", shape.width);
    }
  }
  builder.norm("model.norm.weight", hidden);
  if (!shape.tied) builder.matrix("lm_head.weight", shape.vocab, hidden, hidden);
  return builder.take();
}

}  // namespace tandem::tools
