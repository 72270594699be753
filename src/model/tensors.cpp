// Which tensors a part of a model consists of, and how many bytes it will hold: from the
// description alone, nothing is read.
#include <algorithm>

#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/recurrent_state.h"
#include "model/experts.h"
#include "model/families.h"
#include "model/layer.h"
#include "model/stage.h"

namespace tandem::model {
namespace {

using weights::TensorInfo;

void add(std::vector<TensorInfo>& tensors, std::string name, std::vector<uint64_t> shape) {
  tensors.push_back({std::move(name), weights::DType::kBF16, std::move(shape)});
}

void add_norm(std::vector<TensorInfo>& tensors, const std::string& name, NormKind kind,
              uint32_t n) {
  add(tensors, name + ".weight", {n});
  if (kind == NormKind::kLayer) add(tensors, name + ".bias", {n});
}

uint64_t norm_bytes(NormKind kind, uint64_t n) {
  return n * sizeof(float) * (kind == NormKind::kLayer ? 2 : 1);
}

}  // namespace

kernels::WeightFormat layer_format(WeightBits bits) {
  return bits == WeightBits::k4 ? kernels::WeightFormat::k4 : kernels::WeightFormat::k8;
}

kernels::WeightFormat ends_format(WeightBits bits) {
  return bits == WeightBits::k4 ? kernels::WeightFormat::k6 : kernels::WeightFormat::k8;
}

uint32_t weight_planes(WeightBits bits) {
  return bits == WeightBits::k16 ? 2 : 1;
}

std::vector<MatrixName> with_rests(std::span<const MatrixName> names, uint32_t planes) {
  std::vector<MatrixName> all;
  all.reserve(names.size() * planes);
  for (const MatrixName& name : names) {
    all.push_back(name);
    if (planes == 1) continue;
    all.push_back(name);
    all.back().part.rest = true;
    all.back().has_bias = false;
  }
  return all;
}

std::vector<TensorInfo> layer_tensors(const ModelConfig& config, uint32_t first, uint32_t last) {
  std::vector<TensorInfo> tensors;
  for (uint32_t index = first; index < last; ++index) {
    const LayerNames names = layer_names(config, index);
    const auto matrix = [&](const MatrixName& name, uint64_t rows) {
      const uint64_t columns = name.part.columns;
      add(tensors, name.tensor + ".weight",
          name.part.transposed ? std::vector<uint64_t>{columns, rows}
                               : std::vector<uint64_t>{rows, columns});
      if (name.has_bias) add(tensors, name.tensor + ".bias", {rows});
    };
    const auto norm = [&](const std::string& name) {
      if (!name.empty()) add_norm(tensors, name, config.norm, config.hidden_size);
    };
    norm(names.attention_norm);
    if (names.kind == LayerKind::kDeltaNet) {
      const kernels::DeltaShape& shape = config.delta;
      for (const MatrixName* name : {&names.mixed, &names.delta_gate, &names.rate, &names.decay}) {
        matrix(*name, name->part.rows);
      }
      add(tensors, names.convolution + ".weight", {shape.columns(), 1, shape.kernel});
      add(tensors, names.log_decay, {shape.value_heads});
      add(tensors, names.decay_bias, {shape.value_heads});
      add_norm(tensors, names.delta_norm, NormKind::kRms, shape.value_dim);
    } else {
      if (names.query.tensor == names.key.tensor) {
        matrix(names.query,
               uint64_t{names.query.part.rows} + names.key.part.rows + names.value.part.rows);
      } else {
        matrix(names.query, names.query.part.rows);
        matrix(names.key, names.key.part.rows);
        matrix(names.value, names.value.part.rows);
      }
      if (config.qk_norm != QueryKeyNorm::kNone) {
        add_norm(tensors, names.query_norm, NormKind::kRms, config.query_norm_size());
        add_norm(tensors, names.key_norm, NormKind::kRms, config.key_norm_size());
      }
    }
    matrix(names.output, names.output.part.rows);
    if (!names.sinks.empty()) add(tensors, names.sinks, {config.heads});
    norm(names.attention_post);
    norm(names.mlp_norm);
    if (config.has_experts(index)) {
      add_expert_tensors(config, index, tensors);
      norm(names.mlp_post);
      continue;
    }
    if (names.gate.tensor == names.up.tensor) {
      matrix(names.up, uint64_t{names.gate.part.rows} + names.up.part.rows);
    } else {
      if (!names.gate.tensor.empty()) matrix(names.gate, names.gate.part.rows);
      matrix(names.up, names.up.part.rows);
    }
    matrix(names.down, names.down.part.rows);
    norm(names.mlp_post);
  }
  return tensors;
}

std::vector<TensorInfo> ends_tensors(const ModelConfig& config) {
  const TensorNames& names = config.family->names;
  std::vector<TensorInfo> tensors;
  add(tensors, config.prefix + std::string(names.embedding) + ".weight",
      {config.vocab, config.hidden_size});
  if (config.learned_positions) {
    add(tensors, config.prefix + std::string(names.positions) + ".weight",
        {config.context, config.hidden_size});
  }
  add_norm(tensors, config.prefix + std::string(names.final_norm), config.norm, config.hidden_size);
  if (!config.tied_embeddings) {
    add(tensors, config.head + ".weight", {config.vocab, config.hidden_size});
  }
  return tensors;
}

uint64_t stage_bytes(const ModelConfig& config, const StageOptions& options) {
  uint64_t bytes = 0;
  uint64_t movable = 0;
  for (uint32_t index = options.first_layer; index < options.last_layer; ++index) {
    movable += movable_expert_bytes(config, index, options.weights);
    LayerNames names = layer_names(config, index);
    if (config.has_experts(index)) {
      names.gate = names.up = names.down = {};
      bytes += expert_bytes(config, index, options.weights);
    }
    for (const MatrixName* name :
         {&names.query, &names.key, &names.value, &names.output, &names.gate, &names.up,
          &names.down, &names.mixed, &names.delta_gate, &names.rate, &names.decay}) {
      if (name->tensor.empty()) continue;
      bytes += weight_planes(options.weights) *
               kernels::PackedMatrix::bytes_for(layer_format(options.weights), name->part.rows,
                                                name->part.columns);
      if (name->has_bias) bytes += uint64_t{name->part.rows} * sizeof(float);
    }
    if (!names.sinks.empty()) bytes += config.heads * sizeof(float);
    for (const std::string* name :
         {&names.attention_norm, &names.attention_post, &names.mlp_norm, &names.mlp_post}) {
      if (!name->empty()) bytes += norm_bytes(config.norm, config.hidden_size);
    }
    if (names.kind == LayerKind::kDeltaNet) {
      const kernels::DeltaShape& shape = config.delta;
      bytes +=
          (uint64_t{shape.columns()} * shape.kernel + 2 * shape.value_heads + shape.value_dim) *
          sizeof(float);
      continue;
    }
    if (config.qk_norm != QueryKeyNorm::kNone) {
      bytes +=
          norm_bytes(NormKind::kRms, uint64_t{config.query_norm_size()} + config.key_norm_size());
    }
  }
  if (options.experts_memory && movable > *options.experts_memory) {
    bytes -= movable - *options.experts_memory;
  }
  return bytes;
}

uint64_t bytes_read(const ModelConfig& config, WeightBits weights, uint32_t first_layer,
                    uint32_t last_layer) {
  StageOptions options;
  options.first_layer = first_layer;
  options.last_layer = last_layer;
  options.weights = weights;
  uint64_t bytes = stage_bytes(config, options);
  for (uint32_t index = first_layer; index < last_layer; ++index) {
    bytes -= unread_expert_bytes(config, index, weights);
  }
  return bytes;
}

uint64_t kv_bytes_per_position(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer,
                               KvBits bits) {
  const uint32_t recurrent = config.recurrent_layers(first_layer, last_layer);
  return uint64_t{last_layer - first_layer - recurrent} * cached_ways(config) *
         (kernels::cpu::CpuKvCache::chunk_bytes(config.kv_heads, config.head_dim,
                                                static_cast<uint32_t>(bits)) /
          kernels::cpu::kChunk);
}

uint64_t kv_bytes(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer,
                  uint32_t context, KvBits bits) {
  uint64_t bytes = 0;
  for (uint32_t layer = first_layer; layer < last_layer; ++layer) {
    if (config.recurrent_layers(layer, layer + 1) != 0) continue;
    bytes += kernels::cpu::CpuKvCache::layer_bytes(config.kv_heads, config.head_dim,
                                                   static_cast<uint32_t>(bits),
                                                   config.window[layer], context);
  }
  return bytes * cached_ways(config);
}

uint32_t window_floor(const ModelConfig& config, uint32_t position) {
  uint32_t least = 0;
  for (const uint32_t window : config.window) {
    if (window != 0 && (least == 0 || window < least)) least = window;
  }
  if (least == 0 || position <= kernels::kWindowMargin) return 0;
  const uint32_t floor = position - kernels::kWindowMargin;
  return floor >= least ? floor : 0;
}

uint64_t recurrent_bytes(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer) {
  return kernels::cpu::CpuRecurrentState::bytes_for(
      config.recurrent_layers(first_layer, last_layer), config.delta);
}

uint64_t state_bytes(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer,
                     uint32_t context, KvBits bits) {
  const uint64_t positions = kv_bytes(config, first_layer, last_layer, context, bits);
  const uint64_t checkpoints = checkpoint_bytes(config, first_layer, last_layer);
  if (checkpoints == 0) return positions;
  return positions + recurrent_bytes(config, first_layer, last_layer) +
         checkpoint_limit(config) * checkpoints;
}

uint64_t ends_bytes(const ModelConfig& config, WeightBits bits) {
  uint64_t bytes =
      kernels::PackedMatrix::bytes_for(ends_format(bits), config.vocab, config.hidden_size) *
      weight_planes(bits) * (config.tied_embeddings ? 1 : 2);
  if (config.learned_positions)
    bytes += uint64_t{config.context} * config.hidden_size * sizeof(float);
  return bytes + norm_bytes(config.norm, config.hidden_size);
}

}  // namespace tandem::model
