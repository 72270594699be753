#include "model/plain_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "weights/quantize.h"

namespace tandem::model {

double PlainWeights::random() {
  state_ = state_ * 6364136223846793005U + 1442695040888963407U;
  return static_cast<double>(state_ >> 11) / 9007199254740992.0 * 2 - 1;
}

PlainWeights::Tensor& PlainWeights::add(const std::string& name, std::vector<uint64_t> shape) {
  Tensor& tensor = tensors_[name];
  tensor.info = {name, weights::DType::kF32, std::move(shape)};
  tensor.stored.resize(tensor.info.elements());
  if (!take(tensor)) return tensor;
  tensor.values.assign(tensor.stored.begin(), tensor.stored.end());
  return tensor;
}

bool PlainWeights::take(Tensor& tensor) {
  if (source_ == nullptr) return false;
  const auto data = source_->read(tensor.info.name);
  if (!data.ok()) return false;
  const auto values = weights::read_vector(*data, 0, tensor.info.elements());
  if (!values.ok()) return false;
  tensor.stored = *values;
  return true;
}

const std::vector<double>& PlainWeights::matrix(const std::string& name, uint64_t rows,
                                                uint64_t columns) {
  const std::string full = name + ".weight";
  if (const auto found = tensors_.find(full); found != tensors_.end()) return found->second.values;
  Tensor& tensor = add(full, {rows, columns});
  if (!tensor.values.empty()) return tensor.values;
  const double unit =
      std::exp2(std::floor(std::log2(1.6 / (73 * std::sqrt(static_cast<double>(columns))))));
  for (uint64_t i = 0; i < rows * columns; ++i) {
    double q = i % columns == 0 ? 127 : std::round(random() * 127);
    if (grid_ == Grid::kNone && i % columns != 0) q += 0.49 * random();
    tensor.stored[i] = static_cast<float>(q * unit);
  }
  tensor.values.assign(tensor.stored.begin(), tensor.stored.end());
  return tensor.values;
}

const std::vector<double>& PlainWeights::vector(const std::string& name, uint64_t n,
                                                double middle) {
  if (const auto found = tensors_.find(name); found != tensors_.end()) return found->second.values;
  Tensor& tensor = add(name, {n});
  if (!tensor.values.empty()) return tensor.values;
  for (float& value : tensor.stored) value = static_cast<float>(middle + 0.3 * random());
  tensor.values.assign(tensor.stored.begin(), tensor.stored.end());
  return tensor.values;
}

const weights::TensorInfo* PlainWeights::find(std::string_view tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? nullptr : &found->second.info;
}

Result<weights::TensorData> PlainWeights::read(std::string_view tensor) {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) {
    return Error{ErrorKind::kNotFound, "no tensor " + std::string(tensor)};
  }
  return weights::TensorData{found->second.info, std::as_bytes(std::span(found->second.stored)),
                             nullptr};
}

weights::TensorIdentity PlainWeights::identity(std::string_view tensor) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) return {};
  return {sha256(std::as_bytes(std::span(found->second.stored))), std::nullopt};
}

std::vector<double> plain_frequencies(double theta, uint32_t channels) {
  std::vector<double> frequencies;
  for (uint32_t i = 0; i < channels / 2; ++i) {
    frequencies.push_back(std::pow(theta, -2.0 * i / channels));
  }
  return frequencies;
}

PlainModel::Rows PlainModel::product(PlainWeights& weights, const std::string& tensor,
                                     const Rows& x, uint32_t first, uint32_t rows,
                                     uint32_t all_rows, bool bias) const {
  const size_t columns = x.front().size();
  const std::vector<double>& matrix = weights.matrix(tensor, all_rows, columns);
  Rows result;
  for (const std::vector<double>& token : x) {
    std::vector<double>& out = result.emplace_back(rows);
    for (uint32_t r = 0; r < rows; ++r) {
      const double* row = &matrix[(size_t{first} + r) * columns];
      for (size_t i = 0; i < columns; ++i) out[r] += row[i] * token[i];
      if (bias) out[r] += weights.vector(tensor + ".bias", all_rows, 0)[first + r];
    }
  }
  return result;
}

PlainModel::Rows PlainModel::normed(PlainWeights& weights, const std::string& tensor, const Rows& x,
                                    uint32_t n) const {
  const std::vector<double>& weight = weights.vector(tensor + ".weight", n, plus_one ? 0.0 : 1.0);
  Rows result = x;
  for (std::vector<double>& token : result) {
    for (size_t begin = 0; begin < token.size(); begin += n) {
      double squares = 0;
      for (size_t i = 0; i < n; ++i) squares += token[begin + i] * token[begin + i];
      const double factor = 1 / std::sqrt(squares / n + eps);
      for (size_t i = 0; i < n; ++i) token[begin + i] *= factor * (weight[i] + (plus_one ? 1 : 0));
    }
  }
  return result;
}

std::vector<double> PlainModel::turned(const double* x, const PlainRope* turn, uint32_t position,
                                       bool far) const {
  std::vector<double> result(x, x + dim);
  if (turn == nullptr) return result;
  const std::vector<double>& frequencies = far ? turn->far : turn->frequencies;
  const size_t half = frequencies.size();
  for (size_t i = 0; i < half; ++i) {
    const double cosine = turn->factor * std::cos(frequencies[i] * position);
    const double sine = turn->factor * std::sin(frequencies[i] * position);
    result[i] = x[i] * cosine - x[i + half] * sine;
    result[i + half] = x[i + half] * cosine + x[i] * sine;
  }
  return result;
}

PlainModel::Rows PlainModel::attention(PlainWeights& weights, uint32_t layer, const Rows& x) const {
  const uint32_t q_rows = heads * dim;
  const uint32_t kv_rows = kv_heads * dim;
  const uint32_t all = q_rows + 2 * kv_rows;
  const auto project = [&](const char* own, uint32_t first, uint32_t rows) {
    return fused ? product(weights, name(layer, "self_attn.qkv_proj"), x, first, rows, all, false)
                 : product(weights, name(layer, own), x, 0, rows, rows, attention_bias);
  };
  Rows queries = project("self_attn.q_proj", 0, gated ? 2 * q_rows : q_rows);
  Rows gates(x.size(), std::vector<double>(gated ? q_rows : 0));
  for (size_t t = 0; gated && t < x.size(); ++t) {  // each head: a query, then its gate
    std::vector<double> own(q_rows);
    for (size_t i = 0; i < q_rows; ++i) {
      own[i] = queries[t][i / dim * 2 * dim + i % dim];
      gates[t][i] = queries[t][(i / dim * 2 + 1) * dim + i % dim];
    }
    queries[t] = own;
  }
  Rows keys = project("self_attn.k_proj", q_rows, kv_rows);
  const Rows values = project("self_attn.v_proj", q_rows + kv_rows, kv_rows);
  if (qk_norm != QkNorm::kNone) {
    const bool whole = qk_norm == QkNorm::kWhole;
    queries = normed(weights, name(layer, "self_attn.q_norm"), queries, whole ? q_rows : dim);
    keys = normed(weights, name(layer, "self_attn.k_norm"), keys, whole ? kv_rows : dim);
  }
  Rows attended;
  for (uint32_t t = 0; t < x.size(); ++t) {
    std::vector<double>& out = attended.emplace_back(q_rows);
    const uint32_t first = window[layer] != 0 && t + 1 > window[layer] ? t + 1 - window[layer] : 0;
    const bool far = t >= far_from;
    for (uint32_t h = 0; h < heads; ++h) {
      const size_t kv = size_t{h / (heads / kv_heads)} * dim;
      const auto query = turned(&queries[t][size_t{h} * dim], rope[layer], t, far);
      std::vector<double> mass;
      for (uint32_t j = first; j <= t; ++j) {
        const auto key = turned(&keys[j][kv], rope[layer], j, far);
        double score = 0;
        for (uint32_t c = 0; c < dim; ++c) score += query[c] * key[c];
        mass.push_back(score * scale);
      }
      const double most = *std::max_element(mass.begin(), mass.end());
      double sum = 0;
      for (double& m : mass) sum += m = std::exp(m - most);
      for (uint32_t j = first; j <= t; ++j) {
        for (uint32_t c = 0; c < dim; ++c) {
          out[size_t{h} * dim + c] += mass[j - first] / sum * values[j][kv + c];
        }
      }
    }
    for (size_t i = 0; i < gates[t].size(); ++i) out[i] /= 1 + std::exp(-gates[t][i]);
  }
  return product(weights, name(layer, "self_attn.o_proj"), attended, 0, hidden, hidden,
                 attention_bias && output_bias);
}

PlainModel::Rows PlainModel::mlp(PlainWeights& weights, const std::string& base, uint32_t width,
                                 const Rows& x) const {
  const bool one = fused && experts.count == 0;
  const auto half = [&](const std::string& own, uint32_t first) {
    return one ? product(weights, base + "gate_up_proj", x, first, width, 2 * width, false)
               : product(weights, base + own, x, 0, width, width, mlp_bias);
  };
  Rows gate = half(experts.gate, 0);
  const Rows up = half(experts.up, width);
  for (size_t t = 0; t < gate.size(); ++t) {
    for (size_t i = 0; i < width; ++i) {
      const double g = gate[t][i];
      const double cubic = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
      const double active = gelu ? 0.5 * g * (1 + std::tanh(cubic)) : g / (1 + std::exp(-g));
      gate[t][i] = active * up[t][i];
    }
  }
  return product(weights, base + experts.down, gate, 0, hidden, hidden, mlp_bias);
}

std::vector<double> PlainModel::run(PlainWeights& weights,
                                    const std::vector<uint32_t>& tokens) const {
  const std::vector<double>& table = weights.matrix(prefix + "embed_tokens", vocab, hidden);
  Rows x;
  for (const uint32_t token : tokens) {
    std::vector<double>& row = x.emplace_back(hidden);
    for (uint32_t i = 0; i < hidden; ++i) row[i] = table[size_t{token} * hidden + i] * embedding;
  }
  const auto half = [&](uint32_t layer, const char* before, const char* after, const auto& part) {
    Rows in = norms == Norms::kAfter ? x : normed(weights, name(layer, before), x, hidden);
    Rows out = part(in);
    if (norms != Norms::kBefore) out = normed(weights, name(layer, after), out, hidden);
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < hidden; ++i) x[t][i] += residual * out[t][i];
    }
  };
  for (uint32_t layer = 0; layer < layers; ++layer) {
    half(layer, "input_layernorm", "post_attention_layernorm", [&](const Rows& in) {
      const bool delta_layer = !recurrent.empty() && recurrent[layer];
      return delta_layer ? delta_net(weights, layer, in) : attention(weights, layer, in);
    });
    half(layer, norms == Norms::kBoth ? "pre_feedforward_layernorm" : "post_attention_layernorm",
         "post_feedforward_layernorm", [&](const Rows& in) {
           const bool mixed = experts.count != 0 && (!experts.every_other || layer % 2 == 1);
           return mixed ? mixture(weights, layer, in)
                        : mlp(weights, name(layer, "mlp."), inner, in);
         });
  }
  const Rows out = product(weights, tied ? prefix + "embed_tokens" : head,
                           normed(weights, prefix + "norm", x, hidden), 0, vocab, vocab, false);
  std::vector<double> result;
  for (const std::vector<double>& row : out) {
    for (const double logit : row) result.push_back(logit * logits);
  }
  return result;
}

}  // namespace tandem::model
