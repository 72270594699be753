#include "model/layer.h"

#include <array>
#include <utility>

#include "arithmetic/delta_rule.h"
#include "model/families.h"

namespace tandem::model {
namespace {

using kernels::Backend;
using kernels::Product;

void attention_half(const ModelConfig& config, const Layer& layer, const LayerBuffers& buffers,
                    const PassState& state, Backend& backend) {
  backend.norm(buffers.hidden, layer.attention_norm, buffers.normed);
  const std::array products = {layer.query, layer.key, layer.value};
  backend.matmul(buffers.normed, products);
  const kernels::Norm* query_norm = config.qk_norm ? &layer.query_norm : nullptr;
  const kernels::Norm* key_norm = config.qk_norm ? &layer.key_norm : nullptr;
  backend.queries(buffers.query, query_norm, config.rope.enabled, buffers.heads);
  backend.keys(buffers.key, key_norm, config.rope.enabled, *state.cache, state.cache_layer,
               state.position);
  backend.values(buffers.value, *state.cache, state.cache_layer, state.position);
  kernels::AttentionStep step;
  step.layer = state.cache_layer;
  step.position = state.position;
  step.window = layer.window;
  step.constant = state.score_constant;
  step.gated = config.gated_attention;
  step.gate = buffers.query;
  backend.attention(buffers.heads, *state.cache, step, buffers.attended);
  backend.matmul(buffers.attended, {&layer.output, 1});
  backend.add(buffers.hidden, buffers.delta);
}

void delta_half(const Layer& layer, const LayerBuffers& buffers, const PassState& state,
                Backend& backend) {
  backend.norm(buffers.hidden, layer.attention_norm, buffers.normed);
  const std::array products = {layer.mixed, layer.delta_gate, layer.rate, layer.decay};
  backend.matmul(buffers.normed, products);
  kernels::DeltaStep step = layer.delta;
  step.layer = state.cache_layer;
  backend.delta_net(step, *state.recurrent, buffers.delta_out);
  backend.gated_norm(buffers.delta_out, layer.delta_norm, buffers.delta_gate, buffers.recalled);
  backend.matmul(buffers.recalled, {&layer.output, 1});
  backend.add(buffers.hidden, buffers.delta);
}

void mlp_half(const ModelConfig& config, const Layer& layer, const LayerBuffers& buffers,
              Backend& backend) {
  backend.norm(buffers.hidden, layer.mlp_norm, buffers.normed);
  switch (config.mlp) {
    case MlpKind::kGatedSilu: {
      const std::array products = {layer.gate, layer.up};
      backend.matmul(buffers.normed, products);
      backend.gated_silu(buffers.gate, buffers.up, buffers.inner);
      break;
    }
    case MlpKind::kGelu:
      backend.matmul(buffers.normed, {&layer.up, 1});
      backend.gelu(buffers.up, buffers.inner);
      break;
  }
  backend.matmul(buffers.inner, {&layer.down, 1});
  backend.add(buffers.hidden, buffers.delta);
}

}  // namespace

LayerNames layer_names(const ModelConfig& config, uint32_t layer) {
  const Family& family = *config.family;
  const TensorNames& names = family.names;
  const std::string base = config.prefix + std::string(names.layers) + std::to_string(layer) + ".";
  const auto full = [&](std::string_view name) {
    return name.empty() ? std::string() : base + std::string(name);
  };
  const auto matrix = [&](std::string_view name, uint32_t first, uint32_t rows, uint32_t columns,
                          bool has_bias) {
    MatrixName result;
    result.tensor = full(name);
    result.part = {family.transposed, first, rows, columns};
    result.has_bias = has_bias;
    return result;
  };
  const uint32_t hidden = config.hidden_size;
  const uint32_t inner = config.intermediate_size;
  const uint32_t q_rows = config.heads * config.head_dim;
  const uint32_t kv_rows = config.kv_heads * config.head_dim;
  LayerNames result;
  result.kind = config.kinds[layer];
  const bool delta = result.kind == LayerKind::kDeltaNet;
  const bool fused = !names.query_key_value.empty();
  const auto one_of = [&](std::string_view own) { return fused ? names.query_key_value : own; };
  if (delta) {
    const kernels::DeltaShape& shape = config.delta;
    result.mixed = matrix(names.mixed, 0, shape.columns(), hidden, false);
    result.delta_gate = matrix(names.delta_gate, 0, shape.values(), hidden, false);
    result.rate = matrix(names.rate, 0, shape.value_heads, hidden, false);
    result.decay = matrix(names.decay, 0, shape.value_heads, hidden, false);
    result.output = matrix(names.delta_output, 0, hidden, shape.values(), false);
    result.convolution = full(names.convolution);
    result.delta_norm = full(names.delta_norm);
    result.log_decay = full(names.log_decay);
    result.decay_bias = full(names.decay_bias);
  } else {
    const uint32_t gated_rows = config.gated_attention ? 2 * q_rows : q_rows;
    result.query = matrix(one_of(names.query), 0, gated_rows, hidden, config.attention_bias);
    result.key =
        matrix(one_of(names.key), fused ? q_rows : 0, kv_rows, hidden, config.attention_bias);
    result.value = matrix(one_of(names.value), fused ? q_rows + kv_rows : 0, kv_rows, hidden,
                          config.attention_bias);
    result.output = matrix(names.output, 0, hidden, q_rows, config.output_bias);
  }
  if (!names.gate.empty()) result.gate = matrix(names.gate, 0, inner, hidden, config.mlp_bias);
  result.up = matrix(names.up, 0, inner, hidden, config.mlp_bias);
  result.down = matrix(names.down, 0, hidden, inner, config.mlp_bias);
  result.attention_norm = full(names.attention_norm);
  result.mlp_norm = full(names.mlp_norm);
  if (config.qk_norm && !delta) {
    result.query_norm = full(names.query_norm);
    result.key_norm = full(names.key_norm);
  }
  return result;
}

LayerBuffers make_buffers(const ModelConfig& config, Backend& backend) {
  LayerBuffers buffers;
  const uint32_t q_columns = config.heads * config.head_dim;
  const uint32_t kv_columns = config.kv_heads * config.head_dim;
  buffers.hidden = backend.add_floats(config.hidden_size);
  buffers.delta = backend.add_floats(config.hidden_size);
  buffers.query = backend.add_floats(config.gated_attention ? 2 * q_columns : q_columns);
  buffers.key = backend.add_floats(kv_columns);
  buffers.value = backend.add_floats(kv_columns);
  buffers.up = backend.add_floats(config.intermediate_size);
  if (config.mlp == MlpKind::kGatedSilu) {
    buffers.gate = backend.add_floats(config.intermediate_size);
  }
  buffers.normed = backend.add_activations(config.hidden_size);
  buffers.attended = backend.add_activations(q_columns);
  buffers.inner = backend.add_activations(config.intermediate_size);
  buffers.heads = backend.add_heads(config.heads, config.head_dim);
  if (config.recurrent_layers(0, config.layers) != 0) {
    const kernels::DeltaShape& delta = config.delta;
    buffers.mixed = backend.add_floats(delta.columns());
    buffers.delta_gate = backend.add_floats(delta.values());
    buffers.delta_out = backend.add_floats(delta.values());
    buffers.rate = backend.add_floats(delta.value_heads);
    buffers.decay = backend.add_floats(delta.value_heads);
    buffers.recalled = backend.add_activations(delta.values());
  }
  return buffers;
}

namespace {

Status load_attention(const ModelConfig& config, const LayerNames& names,
                      const LayerBuffers& buffers, WeightLoader& loader, Layer& layer) {
  TANDEM_ASSIGN(layer.query, loader.product(names.query, buffers.query));
  TANDEM_ASSIGN(layer.key, loader.product(names.key, buffers.key));
  TANDEM_ASSIGN(layer.value, loader.product(names.value, buffers.value));
  if (config.qk_norm) {
    TANDEM_ASSIGN(layer.query_norm,
                  loader.norm(names.query_norm, config, config.head_dim, NormKind::kRms));
    TANDEM_ASSIGN(layer.key_norm,
                  loader.norm(names.key_norm, config, config.head_dim, NormKind::kRms));
  }
  TANDEM_ASSIGN(layer.output, loader.product(names.output, buffers.delta));
  return {};
}

Status load_delta(const ModelConfig& config, const LayerNames& names, const LayerBuffers& buffers,
                  WeightLoader& loader, Layer& layer) {
  const kernels::DeltaShape& shape = config.delta;
  TANDEM_ASSIGN(layer.mixed, loader.product(names.mixed, buffers.mixed));
  TANDEM_ASSIGN(layer.delta_gate, loader.product(names.delta_gate, buffers.delta_gate));
  TANDEM_ASSIGN(layer.rate, loader.product(names.rate, buffers.rate));
  TANDEM_ASSIGN(layer.decay, loader.product(names.decay, buffers.decay));
  layer.delta.mixed = buffers.mixed;
  layer.delta.rate = buffers.rate;
  layer.delta.decay = buffers.decay;
  // Exactly rounded by IEEE 754, so the same on every machine.
  layer.delta.scale = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(shape.key_dim)));
  TANDEM_ASSIGN(const auto stored, loader.floats(names.convolution + ".weight", 0,
                                                 uint64_t{shape.columns()} * shape.kernel));
  std::vector<float> weights(stored.size());
  for (size_t c = 0; c < shape.columns(); ++c) {
    for (size_t k = 0; k < shape.kernel; ++k) {
      const float weight = stored[c * shape.kernel + k];
      const bool counts = weight >= arithmetic::kLeastConvolutionWeight ||
                          weight <= -arithmetic::kLeastConvolutionWeight;
      weights[k * shape.columns() + c] = counts ? weight : 0.0F;
    }
  }
  layer.delta.convolution = loader.vector(std::move(weights));
  TANDEM_ASSIGN(auto constants, loader.floats(names.log_decay, 0, shape.value_heads));
  for (float& constant : constants) {
    const double log_decay = constant;
    if (!(log_decay <= arithmetic::kMostLogDecay && log_decay >= -arithmetic::kMostLogDecay)) {
      return invalid("tensor " + names.log_decay + ": holds " + std::to_string(constant) +
                     ", expected -30 to 30");
    }
    constant = arithmetic::decay_constant(log_decay);
  }
  layer.delta.constants = loader.vector(std::move(constants));
  TANDEM_ASSIGN(auto bias, loader.floats(names.decay_bias, 0, shape.value_heads));
  layer.delta.bias = loader.vector(std::move(bias));
  ModelConfig plain = config;
  plain.unit_offset_norms = false;
  TANDEM_ASSIGN(layer.delta_norm,
                loader.norm(names.delta_norm, plain, shape.value_dim, NormKind::kRms));
  TANDEM_ASSIGN(layer.output, loader.product(names.output, buffers.delta));
  return {};
}

}  // namespace

Result<Layer> load_layer(const ModelConfig& config, uint32_t index, const LayerBuffers& buffers,
                         WeightLoader& loader) {
  const LayerNames names = layer_names(config, index);
  Layer layer;
  layer.window = config.window[index];
  loader.expect(layer_matrices(config, index));
  TANDEM_ASSIGN(layer.attention_norm,
                loader.norm(names.attention_norm, config, config.hidden_size, config.norm));
  layer.kind = names.kind;
  if (layer.kind == LayerKind::kDeltaNet) {
    TANDEM_TRY(load_delta(config, names, buffers, loader, layer));
  } else {
    TANDEM_TRY(load_attention(config, names, buffers, loader, layer));
  }
  TANDEM_ASSIGN(layer.mlp_norm,
                loader.norm(names.mlp_norm, config, config.hidden_size, config.norm));
  if (config.mlp == MlpKind::kGatedSilu) {
    TANDEM_ASSIGN(layer.gate, loader.product(names.gate, buffers.gate));
  }
  TANDEM_ASSIGN(layer.up, loader.product(names.up, buffers.up));
  TANDEM_ASSIGN(layer.down, loader.product(names.down, buffers.delta));
  return layer;
}

void run_layer(const ModelConfig& config, const Layer& layer, const LayerBuffers& buffers,
               const PassState& state, Backend& backend) {
  if (layer.kind == LayerKind::kDeltaNet) {
    delta_half(layer, buffers, state, backend);
  } else {
    attention_half(config, layer, buffers, state, backend);
  }
  mlp_half(config, layer, buffers, backend);
}

}  // namespace tandem::model
