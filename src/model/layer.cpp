#include "model/layer.h"

#include <array>
#include <utility>

#include "arithmetic/delta_rule.h"
#include "model/experts.h"
#include "model/families.h"

namespace tandem::model {
namespace {

using kernels::Backend;

// What a half of a layer reads: the hidden state, normed if the family has such a norm.
void enter_half(std::string_view name, const kernels::Norm& norm, const LayerBuffers& buffers,
                Backend& backend) {
  if (name.empty()) {
    backend.quantize(buffers.hidden, buffers.normed);
  } else {
    backend.norm(buffers.hidden, norm, buffers.normed);
  }
}

// Adds what a half of a layer made.
void leave_half(const ModelConfig& config, std::string_view name, const kernels::Norm& norm,
                const LayerBuffers& buffers, Backend& backend) {
  if (!name.empty()) backend.norm_floats(buffers.delta, norm, buffers.delta);
  if (config.residual_scale != 1) backend.scale(buffers.delta, config.residual_scale);
  backend.add(buffers.hidden, buffers.delta);
}

void attention_half(const ModelConfig& config, const Layer& layer, const LayerBuffers& buffers,
                    const PassState& state, Backend& backend) {
  enter_half(config.family->names.attention_norm, layer.attention_norm, buffers, backend);
  multiply(buffers.normed, {&layer.query, &layer.key, &layer.value}, backend);
  if (config.qk_norm == QueryKeyNorm::kProjection) {
    backend.norm_floats(buffers.query, layer.query_norm, buffers.query);
    backend.norm_floats(buffers.key, layer.key_norm, buffers.key);
  }
  const bool each = config.qk_norm == QueryKeyNorm::kHead;
  const LayerRotation& rotation = state.rotations[static_cast<size_t>(layer.rope)];
  backend.queries(buffers.query, each ? &layer.query_norm : nullptr, rotation.rotary,
                  buffers.heads);
  backend.keys(buffers.key, each ? &layer.key_norm : nullptr, rotation.rotary, *state.cache,
               state.cache_layer, state.position);
  backend.values(buffers.value, *state.cache, state.cache_layer, state.position);
  if (state.far.enabled) {
    const kernels::Rotary far = layer.rope == LayerRope::kNone ? kernels::Rotary{} : state.far;
    backend.keys(buffers.key, each ? &layer.key_norm : nullptr, far, *state.cache,
                 state.far_cache_layer, state.position);
    backend.values(buffers.value, *state.cache, state.far_cache_layer, state.position);
  }
  kernels::AttentionStep step;
  step.layer = state.cache_layer;
  step.position = state.position;
  step.window = layer.window;
  step.constant = rotation.score_constant;
  step.sinks = layer.sinks;
  step.gated = config.gated_attention;
  step.gate = buffers.query;
  backend.attention(buffers.heads, *state.cache, step, buffers.attended);
  multiply(buffers.attended, {&layer.output}, backend);
  leave_half(config, config.family->names.attention_post, layer.attention_post, buffers, backend);
}

void delta_half(const Layer& layer, const LayerBuffers& buffers, const PassState& state,
                Backend& backend) {
  backend.norm(buffers.hidden, layer.attention_norm, buffers.normed);
  multiply(buffers.normed, {&layer.mixed, &layer.delta_gate, &layer.rate, &layer.decay}, backend);
  kernels::DeltaStep step = layer.delta;
  step.layer = state.cache_layer;
  backend.delta_net(step, *state.recurrent, buffers.delta_out);
  backend.gated_norm(buffers.delta_out, layer.delta_norm, buffers.delta_gate, buffers.recalled);
  multiply(buffers.recalled, {&layer.output}, backend);
  backend.add(buffers.hidden, buffers.delta);
}

void mlp_half(const ModelConfig& config, const Layer& layer, const LayerBuffers& buffers,
              Backend& backend) {
  enter_half(config.family->names.mlp_norm, layer.mlp_norm, buffers, backend);
  if (!layer.moe.experts.empty()) {
    run_experts(config, layer.moe, buffers, backend);
    leave_half(config, config.family->names.mlp_post, layer.mlp_post, buffers, backend);
    return;
  }
  switch (config.mlp) {
    case MlpKind::kGatedSilu:
      multiply(buffers.normed, {&layer.gate, &layer.up}, backend);
      backend.gated_silu(buffers.gate, buffers.up, buffers.inner);
      break;
    case MlpKind::kGelu:
      multiply(buffers.normed, {&layer.up}, backend);
      backend.gelu(buffers.up, buffers.inner);
      break;
    case MlpKind::kGatedGelu:
      multiply(buffers.normed, {&layer.gate, &layer.up}, backend);
      backend.gated_gelu(buffers.gate, buffers.up, buffers.inner);
      break;
  }
  multiply(buffers.inner, {&layer.down}, backend);
  leave_half(config, config.family->names.mlp_post, layer.mlp_post, buffers, backend);
}

}  // namespace

void multiply(kernels::Activations in, std::initializer_list<const Factor*> factors,
              Backend& backend) {
  std::array<kernels::Product, 2 * kMostFactors> products;
  size_t count = 0;
  for (const Factor* factor : factors) {
    products[count++] = factor->product;
    if (factor->rest) products[count++] = *factor->rest;
  }
  backend.matmul(in, std::span(products).first(count));
  for (const Factor* factor : factors) {
    if (factor->rest) backend.add(factor->product.out, factor->rest->out);
  }
}

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
  if (!names.gate_up.empty()) {
    result.gate = matrix(names.gate_up, 0, inner, hidden, config.mlp_bias);
    result.up = matrix(names.gate_up, inner, inner, hidden, config.mlp_bias);
  } else {
    if (!names.gate.empty()) result.gate = matrix(names.gate, 0, inner, hidden, config.mlp_bias);
    result.up = matrix(names.up, 0, inner, hidden, config.mlp_bias);
  }
  result.down = matrix(names.down, 0, hidden, inner, config.mlp_bias);
  result.attention_norm = full(names.attention_norm);
  result.sinks = full(family.sinks);
  result.mlp_norm = full(names.mlp_norm);
  result.attention_post = full(names.attention_post);
  result.mlp_post = full(names.mlp_post);
  if (config.qk_norm != QueryKeyNorm::kNone && !delta) {
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
  if (config.gated()) {
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
  if (config.moe.experts != 0) {
    const uint32_t logits = config.moe.experts + (config.moe.shared_width != 0 ? 1U : 0U);
    buffers.router = backend.add_floats(logits);
    buffers.router_rest = backend.add_floats(logits);
  }
  return buffers;
}

namespace {

Status load_attention(const ModelConfig& config, const LayerNames& names,
                      const LayerBuffers& buffers, WeightLoader& loader, Layer& layer) {
  TANDEM_ASSIGN(layer.query, loader.factor(names.query, buffers.query));
  TANDEM_ASSIGN(layer.key, loader.factor(names.key, buffers.key));
  TANDEM_ASSIGN(layer.value, loader.factor(names.value, buffers.value));
  if (config.qk_norm != QueryKeyNorm::kNone) {
    TANDEM_ASSIGN(layer.query_norm,
                  loader.norm(names.query_norm, config, config.query_norm_size(), NormKind::kRms));
    TANDEM_ASSIGN(layer.key_norm,
                  loader.norm(names.key_norm, config, config.key_norm_size(), NormKind::kRms));
  }
  TANDEM_ASSIGN(layer.output, loader.factor(names.output, buffers.delta));
  if (!names.sinks.empty()) {
    TANDEM_ASSIGN(auto sinks, loader.floats(names.sinks, 0, config.heads));
    layer.sinks = loader.backend().add_vector(std::move(sinks));
  }
  return {};
}

Status load_delta(const ModelConfig& config, const LayerNames& names, const LayerBuffers& buffers,
                  WeightLoader& loader, Layer& layer) {
  const kernels::DeltaShape& shape = config.delta;
  TANDEM_ASSIGN(layer.mixed, loader.factor(names.mixed, buffers.mixed));
  TANDEM_ASSIGN(layer.delta_gate, loader.factor(names.delta_gate, buffers.delta_gate));
  TANDEM_ASSIGN(layer.rate, loader.factor(names.rate, buffers.rate));
  TANDEM_ASSIGN(layer.decay, loader.factor(names.decay, buffers.decay));
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
  plain.norm_plus_one = false;
  TANDEM_ASSIGN(layer.delta_norm,
                loader.norm(names.delta_norm, plain, shape.value_dim, NormKind::kRms));
  TANDEM_ASSIGN(layer.output, loader.factor(names.output, buffers.delta));
  return {};
}

}  // namespace

Result<Layer> load_layer(const ModelConfig& config, uint32_t index, const LayerBuffers& buffers,
                         WeightLoader& loader) {
  const LayerNames names = layer_names(config, index);
  Layer layer;
  layer.kind = names.kind;
  layer.window = config.window[index];
  layer.rope = config.layer_rope[index];
  loader.expect(layer_matrices(config, index));
  const auto norm = [&](const std::string& name, kernels::Norm& out) -> Status {
    if (name.empty()) return {};
    TANDEM_ASSIGN(out, loader.norm(name, config, config.hidden_size, config.norm));
    return {};
  };
  TANDEM_TRY(norm(names.attention_norm, layer.attention_norm));
  if (layer.kind == LayerKind::kDeltaNet) {
    TANDEM_TRY(load_delta(config, names, buffers, loader, layer));
  } else {
    TANDEM_TRY(load_attention(config, names, buffers, loader, layer));
  }
  TANDEM_TRY(norm(names.attention_post, layer.attention_post));
  TANDEM_TRY(norm(names.mlp_norm, layer.mlp_norm));
  if (config.has_experts(index)) {
    TANDEM_ASSIGN(layer.moe, load_experts(config, index, buffers, loader));
    TANDEM_TRY(norm(names.mlp_post, layer.mlp_post));
    return layer;
  }
  if (config.gated()) {
    TANDEM_ASSIGN(layer.gate, loader.factor(names.gate, buffers.gate));
  }
  TANDEM_ASSIGN(layer.up, loader.factor(names.up, buffers.up));
  TANDEM_ASSIGN(layer.down, loader.factor(names.down, buffers.delta));
  TANDEM_TRY(norm(names.mlp_post, layer.mlp_post));
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
