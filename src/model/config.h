// What a model is: the values of a checkpoint's config.json that its forward pass depends on,
// checked against the family's description.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/recurrent.h"

namespace tandem::model {

enum class NormKind : uint8_t { kRms, kLayer };
enum class MlpKind : uint8_t {
  kGatedSilu,  ///< down(silu(gate x) * up x)
  kGelu,       ///< down(gelu_tanh(up x)), GPT-2's gelu_new
};
/// What a layer mixes positions with.
enum class LayerKind : uint8_t {
  kAttention,
  kDeltaNet,  ///< gated delta net: a recurrent state instead of keys and values
};
enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 };

/// Rotary position embedding, half-split pairs (i, i + head_dim/2).
struct RopeConfig {
  bool enabled = true;  ///< false: GPT-2's learned positions
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  uint32_t original_context = 0;  ///< context that the model was trained with before scaling
  double low_freq_factor = 1.0;   ///< llama3
  double high_freq_factor = 4.0;  ///< llama3
  double beta_fast = 32.0;        ///< yarn
  double beta_slow = 1.0;         ///< yarn
  double attention_factor = 1.0;  ///< yarn: multiplies cosine and sine
  bool truncate = true;           ///< yarn: correction range rounded to whole dimensions
  uint32_t dimensions = 0;        ///< of a head that are rotated, the first ones; 0: all
};

struct Family;  // families.h

/// One model. Every count has been checked: nothing is zero that may not be, products fit 32 bits.
struct ModelConfig {
  const Family* family = nullptr;
  std::string architecture;  ///< "LlamaForCausalLM", …
  uint32_t layers = 0;
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocab = 0;
  uint32_t context = 0;  ///< max_position_embeddings
  double norm_eps = 1e-6;
  NormKind norm = NormKind::kRms;
  MlpKind mlp = MlpKind::kGatedSilu;
  RopeConfig rope;
  bool tied_embeddings = false;
  bool attention_bias = false;  ///< biases of q, k and v
  bool output_bias = false;     ///< bias of the attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;  ///< RMS norm of each query and key head (Qwen3)
  bool learned_positions = false;
  /// Sliding window of each layer in positions; 0 is full attention. One entry a layer.
  std::vector<uint32_t> window;
  /// What each layer mixes positions with. One entry a layer.
  std::vector<LayerKind> kinds;
  kernels::DeltaShape delta;       ///< of layers that are delta nets
  bool gated_attention = false;    ///< queries come with a gate of the head's output (Qwen3.5)
  bool unit_offset_norms = false;  ///< norms multiply by 1 + weight
  /// What tensor names begin with: the family's prefix, or nothing (resolve_prefix).
  std::string prefix;

  [[nodiscard]] bool recurrent(uint32_t layer) const {
    return kinds[layer] == LayerKind::kDeltaNet;
  }
  /// Of layers [first, last): how many are delta nets.
  [[nodiscard]] uint32_t recurrent_layers(uint32_t first, uint32_t last) const;
};

/// Reads a config.json (at most 1 MiB). Unknown architectures and values that Tandem does not
/// compute are refused by name: nothing that changes an answer is ignored.
Result<ModelConfig> parse_config(std::string_view json);

/// Checkpoints of a bare model leave the family's prefix out of their tensor names
/// ("h.0.ln_1.weight" for "transformer.h.0.ln_1.weight"). Sets config.prefix to what `has` (is
/// there a tensor of this name?) says. Call it before any tensor name is made.
void resolve_prefix(ModelConfig& config, const std::function<bool(std::string_view)>& has);

}  // namespace tandem::model
