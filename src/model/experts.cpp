#include "model/experts.h"

#include <string>
#include <utility>

#include "model/families.h"

namespace tandem::model {
namespace {

using kernels::ExpertMatrix;

// A layer's names and the rules of its family, together.
struct Place {
  const ModelConfig& config;
  const ExpertRules& rules;
  std::string layer;    // "model.layers.3."
  std::string experts;  // "model.layers.3.mlp.experts."

  Place(const ModelConfig& model, uint32_t index)
      : config(model),
        rules(*model.family->experts),
        layer(model.prefix + std::string(model.family->names.layers) + std::to_string(index) + "."),
        experts(layer + (model.moe.renamed ? "mlp.experts." : std::string(rules.experts))) {}

  [[nodiscard]] std::string router() const {
    return layer + (config.moe.renamed ? "mlp.gate" : std::string(rules.router));
  }
};

MatrixName plain(std::string tensor, uint32_t rows, uint32_t columns) {
  MatrixName name;
  name.tensor = std::move(tensor);
  name.part = {false, 0, rows, columns};
  return name;
}

// One of the matrices in a fused tensor.
MatrixName stacked(std::string tensor, uint32_t slab, bool transposed, uint32_t first,
                   uint32_t step, uint32_t rows, uint32_t columns) {
  MatrixName name;
  name.tensor = std::move(tensor);
  name.part = {transposed, first, rows, columns, step, true, slab};
  name.bare = true;
  return name;
}

std::vector<MatrixName> one_expert(const Place& place, uint32_t expert) {
  const uint32_t hidden = place.config.hidden_size;
  const uint32_t width = place.config.moe.width;
  const std::string both = place.experts + "gate_up_proj";
  const std::string down = place.experts + "down_proj";
  switch (place.config.moe.layout) {
    case ExpertLayout::kSeparate: {
      const std::string own = place.experts + std::to_string(expert) + ".";
      return {plain(own + std::string(place.rules.gate), width, hidden),
              plain(own + std::string(place.rules.up), width, hidden),
              plain(own + std::string(place.rules.down), hidden, width)};
    }
    case ExpertLayout::kFused:
      return {stacked(both, expert, false, 0, 1, width, hidden),
              stacked(both, expert, false, width, 1, width, hidden),
              stacked(down, expert, false, 0, 1, hidden, width)};
    case ExpertLayout::kInputMajor:
      return {stacked(both, expert, true, 0, 2, width, hidden),
              stacked(both, expert, true, 1, 2, width, hidden),
              stacked(down, expert, true, 0, 1, hidden, width)};
    case ExpertLayout::kMxfp4:
      return {stacked(both + "_blocks", expert, false, 0, 2, width, hidden),
              stacked(both + "_blocks", expert, false, 1, 2, width, hidden),
              stacked(down + "_blocks", expert, false, 0, 1, hidden, width)};
  }
  return {};
}

uint64_t packed_bytes(const std::vector<MatrixName>& names, kernels::WeightFormat format) {
  uint64_t bytes = 0;
  for (const MatrixName& name : names) {
    bytes += kernels::PackedMatrix::bytes_for(format, name.part.rows, name.part.columns);
  }
  return bytes;
}

uint64_t expert_matrix_bytes(const ModelConfig& config, uint32_t layer, WeightBits bits) {
  return expert_planes(config, bits) *
         packed_bytes(one_expert(Place(config, layer), 0), expert_format(config, bits));
}

uint64_t one_expert_bytes(const ModelConfig& config, uint32_t layer, WeightBits bits) {
  const uint64_t biases =
      config.family->experts->biases ? 2 * uint64_t{config.moe.width} + config.hidden_size : 0;
  return expert_matrix_bytes(config, layer, bits) + biases * sizeof(float);
}

// Every `step`-th of `count * step` values from `first` on.
std::vector<float> pick(std::span<const float> values, size_t first, size_t step, size_t count) {
  std::vector<float> picked(count);
  for (size_t i = 0; i < count; ++i) picked[i] = values[first + i * step];
  return picked;
}

// Gate, up and down, each with its rest after it if there are twice as many.
Result<kernels::Expert> add_expert(kernels::Backend& backend,
                                   std::vector<kernels::PackedMatrix> matrices) {
  kernels::Expert expert;
  auto next = matrices.begin();
  for (ExpertMatrix* place : {&expert.gate, &expert.up, &expert.down}) {
    TANDEM_ASSIGN(place->matrix, backend.add_matrix(std::move(*next++)));
    if (matrices.size() == 3) continue;
    TANDEM_ASSIGN(place->rest, backend.add_matrix(std::move(*next++)));
  }
  return expert;
}

Status add_biases(const Place& place, ExpertBlock& block, WeightLoader& loader) {
  const uint64_t experts = place.config.moe.experts;
  const uint64_t width = place.config.moe.width;
  const uint64_t hidden = place.config.hidden_size;
  TANDEM_ASSIGN(const auto both,
                loader.floats(place.experts + "gate_up_proj_bias", 0, experts * 2 * width));
  TANDEM_ASSIGN(const auto down,
                loader.floats(place.experts + "down_proj_bias", 0, experts * hidden));
  kernels::Backend& backend = loader.backend();
  for (size_t i = 0; i < block.experts.size(); ++i) {
    kernels::Expert& expert = block.experts[i];
    expert.gate.bias = backend.add_vector(pick(both, i * 2 * width, 2, width));
    expert.up.bias = backend.add_vector(pick(both, i * 2 * width + 1, 2, width));
    expert.down.bias = backend.add_vector(pick(down, i * hidden, 1, hidden));
    expert.gate.has_bias = expert.up.has_bias = expert.down.has_bias = true;
  }
  return {};
}

}  // namespace

kernels::WeightFormat expert_format(const ModelConfig& config, WeightBits bits) {
  const bool exact = config.moe.layout == ExpertLayout::kMxfp4 && bits != WeightBits::k4;
  return exact ? kernels::WeightFormat::k6 : layer_format(bits);
}

uint32_t expert_planes(const ModelConfig& config, WeightBits bits) {
  return config.moe.layout == ExpertLayout::kMxfp4 ? 1 : weight_planes(bits);
}

ExpertTensors expert_tensors(const ModelConfig& config, uint32_t layer) {
  const Place place(config, layer);
  const ExpertConfig& moe = config.moe;
  ExpertTensors tensors;
  tensors.router.push_back(plain(place.router(), moe.experts, config.hidden_size));
  tensors.router.front().has_bias = place.rules.biases;
  for (uint32_t i = 0; i < moe.experts; ++i) tensors.experts.push_back(one_expert(place, i));
  if (moe.shared_width != 0) {
    const std::string shared = place.layer + std::string(place.rules.shared);
    tensors.shared = {
        plain(shared + std::string(place.rules.gate), moe.shared_width, config.hidden_size),
        plain(shared + std::string(place.rules.up), moe.shared_width, config.hidden_size),
        plain(shared + std::string(place.rules.down), config.hidden_size, moe.shared_width)};
    tensors.router.push_back(
        plain(place.layer + std::string(place.rules.shared_gate), 1, config.hidden_size));
  }
  return tensors;
}

void add_expert_tensors(const ModelConfig& config, uint32_t layer,
                        std::vector<weights::TensorInfo>& tensors) {
  const Place place(config, layer);
  const ExpertTensors names = expert_tensors(config, layer);
  const uint64_t experts = config.moe.experts;
  const uint64_t width = config.moe.width;
  const uint64_t hidden = config.hidden_size;
  const auto add = [&](std::string name, std::vector<uint64_t> shape) {
    tensors.push_back({std::move(name), weights::DType::kBF16, std::move(shape)});
  };
  const auto add_plain = [&](const MatrixName& name) {
    add(name.weight(), {name.part.rows, name.part.columns});
    if (name.has_bias) add(name.tensor + ".bias", {name.part.rows});
  };
  for (const MatrixName& name : names.router) add_plain(name);
  for (const MatrixName& name : names.shared) add_plain(name);
  switch (config.moe.layout) {
    case ExpertLayout::kSeparate:
      for (const auto& expert : names.experts) {
        for (const MatrixName& name : expert) add_plain(name);
      }
      break;
    case ExpertLayout::kFused:
      add(place.experts + "gate_up_proj", {experts, 2 * width, hidden});
      add(place.experts + "down_proj", {experts, hidden, width});
      break;
    case ExpertLayout::kInputMajor:
      add(place.experts + "gate_up_proj", {experts, hidden, 2 * width});
      add(place.experts + "down_proj", {experts, width, hidden});
      break;
    case ExpertLayout::kMxfp4:
      add(place.experts + "gate_up_proj_blocks", {experts, 2 * width, hidden});
      add(place.experts + "down_proj_blocks", {experts, hidden, width});
      break;
  }
  if (place.rules.biases) {
    add(place.experts + "gate_up_proj_bias", {experts, 2 * width});
    add(place.experts + "down_proj_bias", {experts, hidden});
  }
}

uint64_t movable_expert_bytes(const ModelConfig& config, uint32_t layer, WeightBits bits) {
  if (!config.has_experts(layer)) return 0;
  return config.moe.experts * expert_matrix_bytes(config, layer, bits);
}

uint64_t expert_bytes(const ModelConfig& config, uint32_t layer, WeightBits bits) {
  if (!config.has_experts(layer)) return 0;
  const ExpertTensors tensors = expert_tensors(config, layer);
  const uint64_t router = config.moe.experts + (tensors.shared.empty() ? 0U : 1U);
  return config.moe.experts * one_expert_bytes(config, layer, bits) +
         weight_planes(bits) * packed_bytes(tensors.shared, layer_format(bits)) +
         2 * kernels::PackedMatrix::bytes_for(kernels::WeightFormat::k8, router,
                                              config.hidden_size) +
         (config.family->experts->biases ? router * sizeof(float) : 0);
}

uint64_t unread_expert_bytes(const ModelConfig& config, uint32_t layer, WeightBits bits) {
  if (!config.has_experts(layer)) return 0;
  return (config.moe.experts - config.moe.chosen) * one_expert_bytes(config, layer, bits);
}

Result<ExpertBlock> load_experts(const ModelConfig& config, uint32_t layer,
                                 const LayerBuffers& buffers, WeightLoader& loader) {
  const Place place(config, layer);
  const ExpertTensors names = expert_tensors(config, layer);
  ExpertBlock block;
  std::vector<float> bias;
  if (place.rules.biases) {
    TANDEM_ASSIGN(bias, loader.floats(place.router() + ".bias", 0, config.moe.experts));
    bias.resize(config.moe.experts + (config.moe.shared_width != 0 ? 1U : 0U));
  }
  TANDEM_ASSIGN(block.router,
                loader.fine(names.router, std::move(bias), {buffers.router, buffers.router_rest}));
  std::vector<std::vector<MatrixName>> units;
  units.reserve(names.experts.size());
  for (const auto& expert : names.experts) {
    units.push_back(with_rests(expert, expert_planes(config, loader.bits())));
  }
  TANDEM_ASSIGN(auto experts, loader.units(units, expert_format(config, loader.bits()),
                                           config.moe.layout != ExpertLayout::kSeparate));
  for (auto& matrices : experts) {
    TANDEM_ASSIGN(auto expert, add_expert(loader.backend(), std::move(matrices)));
    block.experts.push_back(expert);
  }
  if (!names.shared.empty()) {
    // Every token reads it: it is no better off than the other matrices of the layer.
    loader.expect(names.shared);
    std::vector<kernels::PackedMatrix> shared;
    for (const MatrixName& name : with_rests(names.shared, weight_planes(loader.bits()))) {
      TANDEM_ASSIGN(auto packed, loader.matrix(name));
      shared.push_back(std::move(packed));
    }
    TANDEM_ASSIGN(block.shared, add_expert(loader.backend(), std::move(shared)));
  }
  if (place.rules.biases) TANDEM_TRY(add_biases(place, block, loader));
  return block;
}

void run_experts(const ModelConfig& config, const ExpertBlock& block, const LayerBuffers& buffers,
                 kernels::Backend& backend) {
  multiply(buffers.normed, {&block.router}, backend);
  kernels::ExpertsStep step;
  step.experts = block.experts;
  step.chosen = config.moe.chosen;
  step.normalize = config.moe.normalize;
  if (config.family->experts->clamped) {
    step.activation = {kernels::GatedActivation::Kind::kClampedSwiglu,
                       static_cast<float>(config.moe.alpha), static_cast<float>(config.moe.limit)};
  }
  step.shared = block.shared ? &*block.shared : nullptr;
  backend.experts(buffers.normed, buffers.router, step, buffers.delta);
}

}  // namespace tandem::model
