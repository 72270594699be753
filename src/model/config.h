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
  kGatedGelu,  ///< down(gelu_tanh(gate x) * up x)
};
/// What a layer mixes positions with.
enum class LayerKind : uint8_t {
  kAttention,
  kDeltaNet,  ///< gated delta net: a recurrent state instead of keys and values
};
enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3, kLongRope };
/// RMS norms of queries and keys: of each head, or of all heads of a token together.
enum class QueryKeyNorm : uint8_t { kNone, kHead, kProjection };
/// Which rotation a layer's heads get: none, ModelConfig::rope, or ModelConfig::local_rope.
enum class LayerRope : uint8_t { kNone, kGlobal, kLocal };

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
  double attention_factor = 1.0;  ///< yarn, longrope: multiplies cosine and sine
  bool truncate = true;           ///< yarn: correction range rounded to whole dimensions
  uint32_t channels = 0;          ///< of a head that are rotated, from the first; 0: all
  /// longrope: what frequencies are divided by up to original_context and past it, one a pair.
  std::vector<double> short_factor, long_factor;
};

/// How a checkpoint stores a layer's experts.
enum class ExpertLayout : uint8_t {
  kSeparate,    ///< three tensors an expert
  kFused,       ///< gate_up_proj [experts, 2 width, hidden] and down_proj [experts, hidden, width]
  kInputMajor,  ///< [experts, hidden, 2 width], gate and up in turn, and [experts, width, hidden]
  kMxfp4,       ///< as kInputMajor but output-major, as blocks of 4-bit floats and their scales
};

/// A mixture of experts. Nothing of it counts if there are no experts.
struct ExpertConfig {
  uint32_t experts = 0;       ///< of a layer that has them; 0: the model has none
  uint32_t chosen = 0;        ///< by a token
  uint32_t width = 0;         ///< intermediate size of an expert
  uint32_t shared_width = 0;  ///< of the expert that every token goes to; 0: there is none
  bool normalize = false;     ///< weights of the chosen ones sum to 1
  double alpha = 1.702;       ///< clamped SwiGLU
  double limit = 7.0;         ///< clamped SwiGLU
  ExpertLayout layout = ExpertLayout::kSeparate;
  /// Names as transformers 5 has them in memory, where a family's files have others (Mixtral).
  bool renamed = false;
  /// Layers that have them; the others have an MLP. One entry a layer.
  std::vector<bool> layers;
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
  QueryKeyNorm qk_norm = QueryKeyNorm::kNone;
  bool learned_positions = false;
  /// Sliding window of each layer in positions; 0 is full attention. One entry a layer.
  std::vector<uint32_t> window;
  /// What each layer mixes positions with. One entry a layer.
  std::vector<LayerKind> kinds;
  kernels::DeltaShape delta;     ///< of layers that are delta nets
  bool gated_attention = false;  ///< queries come with a gate of the head's output (Qwen3.5)
  /// What tensor names begin with: one of the family's prefixes, or nothing (resolve_prefix).
  std::string prefix;
  std::string head;  ///< name of an untied output head, without ".weight" (resolve_prefix)
  /// A wrapping and a wrapped config disagree on tied_embeddings: tied if there is no such tensor.
  bool tied_if_no_head = false;
  RopeConfig local_rope;              ///< of sliding layers, where theirs differs
  std::vector<LayerRope> layer_rope;  ///< one entry a layer
  bool norm_plus_one = false;         ///< RMS norm weights are stored less one
  float embedding_scale = 1;          ///< multiplies the embedding
  float residual_scale = 1;           ///< multiplies what each half of a layer adds
  float logit_scale = 1;              ///< multiplies the logits
  /// Scores are multiplied by attention_multiplier, or by 1 / sqrt(query_scalar) where it is 0.
  double attention_multiplier = 0;
  double query_scalar = 0;
  ExpertConfig moe;

  /// Positions from here on are rotated by longrope's long factors; 0: there are none. They see the
  /// keys of earlier ones rotated likewise, so a cache holds those keys both ways.
  [[nodiscard]] uint32_t far_from() const {
    const bool far = rope.scaling == RopeScaling::kLongRope && context > rope.original_context;
    return far ? rope.original_context : 0;
  }
  [[nodiscard]] bool gated() const { return mlp != MlpKind::kGelu; }
  /// Values that one norm of queries covers, and one of keys.
  [[nodiscard]] uint32_t query_norm_size() const {
    return qk_norm == QueryKeyNorm::kProjection ? heads * head_dim : head_dim;
  }
  [[nodiscard]] uint32_t key_norm_size() const {
    return qk_norm == QueryKeyNorm::kProjection ? kv_heads * head_dim : head_dim;
  }
  /// True if this layer has experts instead of an MLP.
  [[nodiscard]] bool has_experts(uint32_t layer) const {
    return moe.experts != 0 && moe.layers[layer];
  }

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
/// ("h.0.ln_1.weight" for "transformer.h.0.ln_1.weight"), and experts are stored in several ways.
/// Sets config.prefix and config.moe.layout to what `has` (is there a tensor of this name?) says.
/// Call it before any tensor name is made.
void resolve_prefix(ModelConfig& config, const std::function<bool(std::string_view)>& has);

}  // namespace tandem::model
