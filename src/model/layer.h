// A layer of a model: its weights as handles of a backend, and its forward pass as a list of steps.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/stage.h"
#include "weights/quantize.h"
#include "weights/source.h"

namespace tandem::model {

/// A matrix of a layer: which part of which tensor.
struct MatrixName {
  std::string tensor;  ///< without ".weight"
  weights::MatrixPart part;
  bool has_bias = false;
  bool bare = false;  ///< the tensor's name has no ".weight"

  [[nodiscard]] std::string weight() const { return bare ? tensor : tensor + ".weight"; }
};

/// The tensors of one layer by role. Roles that a family or kind of layer lacks have an empty
/// tensor name.
struct LayerNames {
  LayerKind kind = LayerKind::kAttention;
  MatrixName query, key, value, output, gate, up, down;
  std::string attention_norm, mlp_norm, query_norm, key_norm;  ///< without ".weight"
  std::string attention_post, mlp_post;                        ///< likewise
  std::string sinks;                                           ///< the whole name
  // Delta nets. `output` is theirs too.
  MatrixName mixed, delta_gate, rate, decay;
  std::string convolution, delta_norm;  ///< without ".weight"
  std::string log_decay, decay_bias;    ///< whole names
};
/// Formats of a layer's matrices, and of the embedding and the output head: 8 bits, or 4 bits with
/// 6 for the ends, which are read for every token and suffer most from fewer.
kernels::WeightFormat layer_format(WeightBits bits);
kernels::WeightFormat ends_format(WeightBits bits);
/// How many matrices of that format stand for one: 2 for 16 bits (MatrixPart::rest), else 1.
uint32_t weight_planes(WeightBits bits);
/// The same with each matrix's rest after it, where there are two planes.
std::vector<MatrixName> with_rests(std::span<const MatrixName> names, uint32_t planes);

/// A matrix to multiply with: a product, and that of what it leaves out, which is added to it.
struct Factor {
  kernels::Product product;
  std::optional<kernels::Product> rest;
};
inline constexpr size_t kMostFactors = 4;
/// What the products of all factors with `in` are, in the outputs of their first ones.
void multiply(kernels::Activations in, std::initializer_list<const Factor*> factors,
              kernels::Backend& backend);

LayerNames layer_names(const ModelConfig& config, uint32_t layer);

/// A layer's experts in a backend (experts.h).
struct ExpertBlock {
  /// Logits of the experts, and of the shared one's gate: the product of the router's weights in 8
  /// bits, and that of what these leave out.
  Factor router;
  std::vector<kernels::Expert> experts;  ///< empty: the layer has an MLP
  std::optional<kernels::Expert> shared;
};
/// How often a cache holds each layer: twice where ModelConfig::far_from() says so.
inline uint32_t cached_ways(const ModelConfig& config) {
  return config.far_from() == 0 ? 1 : 2;
}

/// One layer's weights in a backend.
struct Layer {
  Factor query, key, value, output, gate, up, down;  ///< out: buffers of LayerBuffers
  kernels::Norm attention_norm, mlp_norm, query_norm, key_norm, attention_post, mlp_post;
  uint32_t window = 0;
  LayerRope rope = LayerRope::kGlobal;
  std::optional<kernels::Vector> sinks;
  ExpertBlock moe;
  LayerKind kind = LayerKind::kAttention;
  Factor mixed, delta_gate, rate, decay;
  kernels::Norm delta_norm;
  kernels::DeltaStep delta;  ///< but for the layer's place in the state
};

/// The buffers that all layers of a stage share.
struct LayerBuffers {
  kernels::Floats hidden;  ///< [tokens, hidden_size]
  kernels::Floats delta;   ///< [tokens, hidden_size]: what a half of a layer adds
  kernels::Floats query, key, value, gate, up;
  kernels::Activations normed;    ///< [tokens, hidden_size]
  kernels::Activations attended;  ///< [tokens, heads * head_dim]
  kernels::Activations inner;     ///< [tokens, intermediate_size]
  kernels::Heads heads;
  kernels::Floats router, router_rest;  ///< [tokens, experts (+ 1)]
  // Delta nets.
  kernels::Floats mixed;          ///< [tokens, delta.columns()]
  kernels::Floats delta_gate;     ///< [tokens, delta.values()]
  kernels::Floats delta_out;      ///< likewise
  kernels::Floats rate;           ///< [tokens, value_heads]
  kernels::Floats decay;          ///< likewise
  kernels::Activations recalled;  ///< [tokens, delta.values()]
};
LayerBuffers make_buffers(const ModelConfig& config, kernels::Backend& backend);

/// The keys under which a cache may hold these matrices together, best first; none if the source
/// can't tell what its tensors are.
std::vector<Digest> unit_keys(const weights::TensorSource& source, kernels::WeightFormat format,
                              std::span<const MatrixName> names);
/// A layer's matrices in the order in which load_layer() loads them.
std::vector<MatrixName> layer_matrices(const ModelConfig& config, uint32_t layer);
/// The embedding, and the output head of models that have one of their own.
MatrixName embedding_matrix(const ModelConfig& config);
MatrixName head_matrix(const ModelConfig& config);

/// Reads weights from a source, or a cache of what was read from it before, into a backend, one
/// tensor in memory at a time.
class WeightLoader {
 public:
  /// `total` bytes of source tensors are announced to `progress`. `cache` may be null.
  WeightLoader(weights::TensorSource& source, kernels::Backend& backend, ThreadPool& pool,
               kernels::WeightFormat format, uint32_t planes, uint64_t total,
               std::function<bool(uint64_t, uint64_t)> progress, weights::PackedStore* cache)
      : source_(source),
        backend_(backend),
        pool_(pool),
        format_(format),
        planes_(planes),
        total_(total),
        progress_(std::move(progress)),
        cache_(cache) {}

  /// Experts are to stay in the cache's files.
  void leave_experts_on_disk() { on_disk_ = true; }
  /// Announces that exactly these matrices come next, in this order and with their rests: they are
  /// one entry of the cache.
  void expect(std::span<const MatrixName> names);

  /// Loads a matrix, its rest if there are two planes, and its bias if it has one, with the output
  /// in `out`.
  Result<Factor> factor(const MatrixName& name, kernels::Floats out);
  /// The same of a matrix's planes, which are given to the backend.
  Result<Factor> factor(std::vector<kernels::PackedMatrix> planes, kernels::Floats out);
  /// Quantizes a matrix without giving it to the backend.
  Result<kernels::PackedMatrix> matrix(const MatrixName& name);
  /// Matrices that are entries of the cache of their own, in the order of `units`: what the cache
  /// has comes from there, several at a time; the rest is quantized, tensor by tensor if `by_role`
  /// (all first matrices, all second ones, …), else unit by unit. Units are of equal length. After
  /// leave_experts_on_disk() they are `on_demand` and count for nothing; error kInvalid if there is
  /// no cache, kIo if it can't keep them.
  Result<std::vector<std::vector<kernels::PackedMatrix>>> units(
      std::span<const std::vector<MatrixName>> units, kernels::WeightFormat format, bool by_role);
  /// The weights [rows of all tensors together, columns] of small matrices in two planes of 8 bits
  /// a row, whatever the format of the others. Outputs are `outs`; `bias` may be empty.
  Result<Factor> fine(std::span<const MatrixName> names, std::vector<float> bias,
                      const std::array<kernels::Floats, 2>& outs);
  [[nodiscard]] kernels::Backend& backend() { return backend_; }
  [[nodiscard]] WeightBits bits() const {
    if (format_ == kernels::WeightFormat::k4) return WeightBits::k4;
    return planes_ == 2 ? WeightBits::k16 : WeightBits::k8;
  }
  /// A norm over n values.
  Result<kernels::Norm> norm(const std::string& name, const ModelConfig& config, uint32_t n,
                             NormKind kind);
  /// A whole one- or two-dimensional tensor as binary32.
  Result<std::vector<float>> floats(const std::string& tensor, uint64_t first, uint64_t count);
  /// Gives values that floats() read, or made from them, to the backend.
  kernels::Vector vector(std::vector<float> values) {
    return backend_.add_vector(std::move(values));
  }
  /// Bytes of weights, norms and biases given to the backend so far.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  Status advance(uint64_t bytes);
  /// The next expected matrix from the cache, if it had them.
  std::optional<kernels::PackedMatrix> from_cache();
  void keep(const kernels::PackedMatrix& matrix);
  Result<kernels::PackedMatrix> quantized(const MatrixName& name, kernels::WeightFormat format);
  std::optional<std::vector<kernels::PackedMatrix>> unit_from_cache(
      std::span<const MatrixName> unit, kernels::WeightFormat format, ThreadPool& pool,
      std::optional<Digest>& key);
  Status finish_unit(const std::optional<Digest>& key, std::span<const MatrixName> names,
                     kernels::WeightFormat format, std::vector<kernels::PackedMatrix>& unit);
  Result<std::vector<float>> read_floats(const std::string& tensor, uint64_t first, uint64_t count);
  /// A tensor that is still at hand from the call before, or from the source.
  Result<weights::TensorData> tensor(const std::string& name);

  weights::TensorSource& source_;
  kernels::Backend& backend_;
  ThreadPool& pool_;
  kernels::WeightFormat format_;
  uint32_t planes_;
  uint64_t total_;
  uint64_t done_ = 0;
  uint64_t bytes_ = 0;
  std::function<bool(uint64_t, uint64_t)> progress_;
  weights::PackedStore* cache_;
  // Of the expected matrices: their key, how many there are, and either those that the cache had,
  // from the last to the first, or those that were quantized so far.
  Digest key_{};
  size_t expected_ = 0;
  std::vector<kernels::PackedMatrix> found_;
  std::vector<kernels::PackedMatrix> made_;
  std::optional<weights::TensorData> last_;
  bool on_disk_ = false;
  std::map<uint32_t, kernels::Floats> rest_outs_;  // by what they are added to
};

Result<Layer> load_layer(const ModelConfig& config, uint32_t layer, const LayerBuffers& buffers,
                         WeightLoader& loader);

/// How the layers of one kind rotate heads, and scale scores, in a pass.
struct LayerRotation {
  kernels::Rotary rotary;
  float score_constant = 0;
};

/// Where a pass stands: what a layer's steps need beside its weights.
struct PassState {
  kernels::KvCache* cache = nullptr;
  uint32_t cache_layer = 0;  ///< index within `cache`, or within `recurrent`
  uint32_t position = 0;
  LayerRotation rotations[3];  ///< by LayerRope
  /// Positions below ModelConfig::far_from(): how later ones see their keys, and the layer of the
  /// cache that holds them so.
  kernels::Rotary far;
  uint32_t far_cache_layer = 0;
  kernels::RecurrentState* recurrent = nullptr;
};

/// Adds one layer to buffers.hidden: attention half, then MLP half.
void run_layer(const ModelConfig& config, const Layer& layer, const LayerBuffers& buffers,
               const PassState& state, kernels::Backend& backend);

}  // namespace tandem::model
