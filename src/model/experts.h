// The experts of a layer: their tensors, how they are loaded, and their part of a forward pass. A
// family takes part in it by its ExpertRules.
#pragma once

#include <cstdint>
#include <vector>

#include "model/layer.h"

namespace tandem::model {

/// Tensors of a layer's experts. Each expert: gate, up, down.
struct ExpertTensors {
  std::vector<MatrixName> router;  ///< [experts, hidden], and the shared expert's gate [1, hidden]
  std::vector<std::vector<MatrixName>> experts;
  std::vector<MatrixName> shared;  ///< empty: there is none
};
/// Tensors of a layer that has_experts().
ExpertTensors expert_tensors(const ModelConfig& config, uint32_t layer);

/// MXFP4 becomes 6 bits where other layers have 8 or 16: nothing is lost, and less is read.
kernels::WeightFormat expert_format(const ModelConfig& config, WeightBits bits);
/// How many matrices of that format stand for one of an expert.
uint32_t expert_planes(const ModelConfig& config, WeightBits bits);

/// Names and shapes of all of them as the checkpoint has them, biases included.
void add_expert_tensors(const ModelConfig& config, uint32_t layer,
                        std::vector<weights::TensorInfo>& tensors);

/// Bytes that a layer's experts hold; of these what a token does not read, and what may stay on
/// disk. 0 for a layer without experts.
uint64_t expert_bytes(const ModelConfig& config, uint32_t layer, WeightBits bits);
uint64_t unread_expert_bytes(const ModelConfig& config, uint32_t layer, WeightBits bits);
uint64_t movable_expert_bytes(const ModelConfig& config, uint32_t layer, WeightBits bits);

Result<ExpertBlock> load_experts(const ModelConfig& config, uint32_t layer,
                                 const LayerBuffers& buffers, WeightLoader& loader);

/// Sets buffers.delta to what the layer's experts say of buffers.normed.
void run_experts(const ModelConfig& config, const ExpertBlock& block, const LayerBuffers& buffers,
                 kernels::Backend& backend);

}  // namespace tandem::model
