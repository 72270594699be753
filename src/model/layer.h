// A layer of a model: its weights as handles of a backend, and its forward pass as a list of steps.
#pragma once

#include <cstdint>
#include <functional>
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
};

/// The tensors of one layer by role. Roles that a family or kind of layer lacks have an empty
/// tensor name.
struct LayerNames {
  LayerKind kind = LayerKind::kAttention;
  MatrixName query, key, value, output, gate, up, down;
  std::string attention_norm, mlp_norm, query_norm, key_norm;  ///< without ".weight"
  // Delta nets. `output` is theirs too.
  MatrixName mixed, delta_gate, rate, decay;
  std::string convolution, delta_norm;  ///< without ".weight"
  std::string log_decay, decay_bias;    ///< whole names
};
/// Formats of a layer's matrices, and of the embedding and the output head: 8 bits, or 4 bits with
/// 6 for the ends, which are read for every token and suffer most from fewer.
kernels::WeightFormat layer_format(WeightBits bits);
kernels::WeightFormat ends_format(WeightBits bits);

LayerNames layer_names(const ModelConfig& config, uint32_t layer);

/// One layer's weights in a backend.
struct Layer {
  kernels::Product query, key, value, output, gate, up, down;  ///< out: buffers of LayerBuffers
  kernels::Norm attention_norm, mlp_norm, query_norm, key_norm;
  uint32_t window = 0;
  LayerKind kind = LayerKind::kAttention;
  kernels::Product mixed, delta_gate, rate, decay;
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
               kernels::WeightFormat format, uint64_t total,
               std::function<bool(uint64_t, uint64_t)> progress, weights::PackedStore* cache)
      : source_(source),
        backend_(backend),
        pool_(pool),
        format_(format),
        total_(total),
        progress_(std::move(progress)),
        cache_(cache) {}

  /// Announces that exactly these matrices come next, in this order: they are one entry of the
  /// cache.
  void expect(std::span<const MatrixName> names);

  /// Loads a matrix, and its bias if it has one, as a product with its output in `out`.
  Result<kernels::Product> product(const MatrixName& name, kernels::Floats out);
  /// Quantizes a matrix without giving it to the backend.
  Result<kernels::PackedMatrix> matrix(const MatrixName& name);
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

  weights::TensorSource& source_;
  kernels::Backend& backend_;
  ThreadPool& pool_;
  kernels::WeightFormat format_;
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
};

Result<Layer> load_layer(const ModelConfig& config, uint32_t layer, const LayerBuffers& buffers,
                         WeightLoader& loader);

/// Where a pass stands: what a layer's steps need beside its weights.
struct PassState {
  kernels::KvCache* cache = nullptr;
  uint32_t cache_layer = 0;  ///< index within `cache`, or within `recurrent`
  uint32_t position = 0;
  float score_constant = 0;
  kernels::RecurrentState* recurrent = nullptr;
};

/// Adds one layer to buffers.hidden: attention half, then MLP half.
void run_layer(const ModelConfig& config, const Layer& layer, const LayerBuffers& buffers,
               const PassState& state, kernels::Backend& backend);

}  // namespace tandem::model
