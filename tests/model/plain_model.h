// A plain decoder in double precision: what a family computes, straight from its definition and
// without a line of src/model. Models that no other program has answers for are compared with it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weights/source.h"

namespace tandem::model {

/// Tensors by name: random ones, made when they are first asked for, or those of another source.
/// Random matrices lie on an int8 grid a row, so that 8-bit weights hold them exactly, or on none.
class PlainWeights final : public weights::TensorSource {
 public:
  enum class Grid { kBytes, kNone };
  explicit PlainWeights(weights::TensorSource* source = nullptr, Grid grid = Grid::kBytes)
      : source_(source), grid_(grid) {}

  const std::vector<double>& matrix(const std::string& name, uint64_t rows, uint64_t columns);
  /// Values around `middle`.
  const std::vector<double>& vector(const std::string& name, uint64_t n, double middle);

  [[nodiscard]] const weights::TensorInfo* find(std::string_view tensor) const override;
  [[nodiscard]] Result<weights::TensorData> read(std::string_view tensor) override;
  [[nodiscard]] weights::TensorIdentity identity(std::string_view tensor) const override;

 private:
  struct Tensor {
    weights::TensorInfo info;
    std::vector<float> stored;
    std::vector<double> values;
  };
  Tensor& add(const std::string& name, std::vector<uint64_t> shape);
  bool take(Tensor& tensor);
  double random();

  weights::TensorSource* source_;
  const Grid grid_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  uint64_t state_ = 1;
};

/// How the heads of a layer turn: radians a position of each rotated pair.
struct PlainRope {
  std::vector<double> frequencies;
  std::vector<double> far;  ///< of tokens from PlainModel::far_from on, and of all that they see
  double factor = 1;        ///< multiplies cosine and sine
};

/// A mixture of experts in place of each layer's MLP.
struct PlainExperts {
  uint32_t count = 0;  ///< 0: there is none
  uint32_t chosen = 0, width = 0;
  uint32_t shared = 0;       ///< width of the one that every token uses, or 0
  bool normalize = true;     ///< weights of the chosen ones sum to one
  bool every_other = false;  ///< layers 1, 3, … only; the others have an MLP
  /// A token's experts in a layer, in any order; empty: those of the largest logits.
  std::function<std::vector<uint32_t>(uint32_t layer, uint32_t token,
                                      const std::vector<double>& logits)>
      choose;
  std::string base = "mlp.", gate = "gate_proj", up = "up_proj", down = "down_proj";
};

/// Gated delta nets in place of some layers' attention.
struct PlainDelta {
  uint32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, kernel = 0;
};

struct PlainModel {
  enum class Norms { kBefore, kAfter, kBoth };  ///< Llama's, OLMo 2's, Gemma 3's
  enum class QkNorm { kNone, kHead, kWhole };

  std::string prefix = "model.";
  std::string head = "lm_head";
  uint32_t layers = 4, hidden = 64, inner = 96, heads = 4, kv_heads = 2, dim = 16, vocab = 128;
  double eps = 1e-6;
  Norms norms = Norms::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  bool plus_one = false, fused = false, tied = false, gelu = false;
  bool attention_bias = false, mlp_bias = false;
  bool output_bias = true;  ///< with attention_bias: of the output projection too
  bool gated = false;       ///< queries bring a gate of each channel
  PlainExperts experts;
  PlainDelta delta;
  std::vector<bool> recurrent;  ///< which layers are delta nets; empty: none
  double embedding = 1, residual = 1, logits = 1, scale = 0.25;
  uint32_t far_from = 1U << 30;
  std::vector<const PlainRope*> rope;  ///< one a layer; null: none
  std::vector<uint32_t> window;        ///< one a layer; 0: all

  /// Logits [tokens, vocab] of all tokens, from position 0.
  [[nodiscard]] std::vector<double> run(PlainWeights& weights,
                                        const std::vector<uint32_t>& tokens) const;

 private:
  using Rows = std::vector<std::vector<double>>;
  Rows attention(PlainWeights& weights, uint32_t layer, const Rows& x) const;
  Rows mlp(PlainWeights& weights, const std::string& base, uint32_t width, const Rows& x) const;
  Rows mixture(PlainWeights& weights, uint32_t layer, const Rows& x) const;
  Rows delta_net(PlainWeights& weights, uint32_t layer, const Rows& x) const;
  Rows product(PlainWeights& weights, const std::string& name, const Rows& x, uint32_t first,
               uint32_t rows, uint32_t all_rows, bool bias) const;
  Rows normed(PlainWeights& weights, const std::string& name, const Rows& x, uint32_t n) const;
  std::vector<double> turned(const double* x, const PlainRope* turn, uint32_t position,
                             bool far) const;
  [[nodiscard]] std::string name(uint32_t layer, const std::string& part) const {
    return prefix + "layers." + std::to_string(layer) + "." + part;
  }
};

/// theta^(-2 i / channels) for the pairs of `channels`.
std::vector<double> plain_frequencies(double theta, uint32_t channels);

}  // namespace tandem::model
