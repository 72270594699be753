#include "checkpoint_maker/hybrid.h"

#include <cmath>
#include <utility>

namespace tandem::tools {
namespace {

using nlohmann::ordered_json;

class Builder {
 public:
  explicit Builder(const Shape& shape) : shape_(shape) {}

  void add(const std::string& name, std::vector<uint64_t> extents, Values values) {
    list_.push_back({{name, weights::DType::kBF16, std::move(extents)}, values});
  }
  void matrix(const std::string& name, uint64_t rows, uint64_t columns, double gain = 1) {
    add(name, {rows, columns}, {0, gain / std::sqrt(static_cast<double>(columns))});
  }
  /// Multiplies by 1 + weight.
  void norm(const std::string& name, uint64_t size) { add(name, {size}, {0, 0.1}); }

  void attention(const std::string& prefix, double residual) {
    const uint64_t query = shape_.heads * shape_.head_dim;
    const uint64_t key = shape_.kv_heads * shape_.head_dim;
    matrix(prefix + "q_proj.weight", 2 * query, shape_.hidden);
    matrix(prefix + "k_proj.weight", key, shape_.hidden);
    matrix(prefix + "v_proj.weight", key, shape_.hidden);
    norm(prefix + "q_norm.weight", shape_.head_dim);
    norm(prefix + "k_norm.weight", shape_.head_dim);
    matrix(prefix + "o_proj.weight", shape_.hidden, query, residual);
  }
  void delta_net(const std::string& prefix, double residual) {
    const DeltaNet& net = shape_.delta;
    const uint64_t values = net.value_heads * net.value_dim;
    const uint64_t columns = 2 * net.key_heads * net.key_dim + values;
    matrix(prefix + "in_proj_qkv.weight", columns, shape_.hidden);
    matrix(prefix + "in_proj_z.weight", values, shape_.hidden);
    matrix(prefix + "in_proj_b.weight", net.value_heads, shape_.hidden);
    matrix(prefix + "in_proj_a.weight", net.value_heads, shape_.hidden);
    add(prefix + "conv1d.weight", {columns, 1, net.kernel}, {0, 0.5});
    add(prefix + "A_log", {net.value_heads}, {0, 1});
    add(prefix + "dt_bias", {net.value_heads}, {-2, 1});
    add(prefix + "norm.weight", {net.value_dim}, {1, 0.1});
    matrix(prefix + "out_proj.weight", shape_.hidden, values, residual);
  }
  void layer(const std::string& prefix, bool recurrent, double residual) {
    norm(prefix + "input_layernorm.weight", shape_.hidden);
    if (recurrent) {
      delta_net(prefix + "linear_attn.", residual);
    } else {
      attention(prefix + "self_attn.", residual);
    }
    norm(prefix + "post_attention_layernorm.weight", shape_.hidden);
    matrix(prefix + "mlp.gate_proj.weight", shape_.intermediate, shape_.hidden);
    matrix(prefix + "mlp.up_proj.weight", shape_.intermediate, shape_.hidden);
    matrix(prefix + "mlp.down_proj.weight", shape_.hidden, shape_.intermediate, residual);
  }
  std::vector<MadeTensor> take() { return std::move(list_); }

 private:
  const Shape& shape_;
  std::vector<MadeTensor> list_;
};

}  // namespace

ordered_json hybrid_config(const Shape& shape) {
  ordered_json types = ordered_json::array();
  for (uint64_t layer = 0; layer < shape.layers; ++layer) {
    types.push_back((layer + 1) % 4 == 0 ? "full_attention" : "linear_attention");
  }
  ordered_json text = {{"attention_bias", false},
                       {"attention_dropout", 0.0},
                       {"attn_output_gate", true},
                       {"eos_token_id", shape.eos.front()},
                       {"full_attention_interval", 4},
                       {"head_dim", shape.head_dim},
                       {"hidden_act", "silu"},
                       {"hidden_size", shape.hidden},
                       {"initializer_range", 0.02},
                       {"intermediate_size", shape.intermediate},
                       {"layer_types", types},
                       {"linear_conv_kernel_dim", shape.delta.kernel},
                       {"linear_key_head_dim", shape.delta.key_dim},
                       {"linear_num_key_heads", shape.delta.key_heads},
                       {"linear_num_value_heads", shape.delta.value_heads},
                       {"linear_value_head_dim", shape.delta.value_dim},
                       {"mamba_ssm_dtype", "float32"},
                       {"max_position_embeddings", shape.context},
                       {"model_type", "qwen3_5_text"},
                       {"mtp_num_hidden_layers", shape.wrapped ? 1 : 0},
                       {"mtp_use_dedicated_embeddings", false},
                       {"num_attention_heads", shape.heads},
                       {"num_hidden_layers", shape.layers},
                       {"num_key_value_heads", shape.kv_heads},
                       {"rms_norm_eps", shape.eps},
                       {"rope_parameters",
                        {{"mrope_interleaved", true},
                         {"mrope_section", {11, 11, 10}},
                         {"partial_rotary_factor", 0.25},
                         {"rope_theta", shape.rope_theta},
                         {"rope_type", "default"}}},
                       {"tie_word_embeddings", shape.tied},
                       {"torch_dtype", "bfloat16"},
                       {"use_cache", true},
                       {"vocab_size", shape.vocab}};
  if (!shape.wrapped) {
    text["architectures"] = {"Qwen3_5ForCausalLM"};
    text["transformers_version"] = "5.2.0";
    return text;
  }
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"model_type", "qwen3_5"},
          {"text_config", text},
          {"tie_word_embeddings", shape.tied},
          {"transformers_version", "5.2.0"},
          {"vision_config", {{"hidden_size", 32}, {"model_type", "qwen3_5"}}}};
}

std::vector<MadeTensor> hybrid_tensors(const Shape& shape) {
  const double residual = 1 / std::sqrt(2.0 * static_cast<double>(shape.layers));
  const std::string prefix = shape.wrapped ? "model.language_model." : "model.";
  Builder builder(shape);
  builder.add(prefix + "embed_tokens.weight", {shape.vocab, shape.hidden}, {0, 0.02});
  for (uint64_t layer = 0; layer < shape.layers; ++layer) {
    builder.layer(prefix + "layers." + std::to_string(layer) + ".", (layer + 1) % 4 != 0, residual);
  }
  builder.norm(prefix + "norm.weight", shape.hidden);
  if (!shape.tied) builder.matrix("lm_head.weight", shape.vocab, shape.hidden);
  if (shape.wrapped) {
    builder.matrix("model.visual.merger.linear_fc2.weight", shape.hidden, 32);
    builder.matrix("mtp.fc.weight", shape.hidden, 2 * shape.hidden);
    builder.layer("mtp.layers.0.", false, residual);
    builder.norm("mtp.norm.weight", shape.hidden);
    builder.norm("mtp.pre_fc_norm_embedding.weight", shape.hidden);
    builder.norm("mtp.pre_fc_norm_hidden.weight", shape.hidden);
  }
  return builder.take();
}

}  // namespace tandem::tools
