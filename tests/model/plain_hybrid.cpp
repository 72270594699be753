// The plain model's mixtures of experts and gated delta nets.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/plain_model.h"

namespace tandem::model {
namespace {

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

PlainModel::Rows PlainModel::mixture(PlainWeights& weights, uint32_t layer, const Rows& x) const {
  const std::string base = name(layer, experts.base);
  const Rows scores = product(weights, base + "gate", x, 0, experts.count, experts.count, false);
  Rows result;
  for (size_t t = 0; t < x.size(); ++t) {
    std::vector<uint32_t> order(experts.count);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return scores[t][a] > scores[t][b]; });
    if (experts.choose) {
      const std::vector<uint32_t> own = experts.choose(layer, static_cast<uint32_t>(t), scores[t]);
      std::stable_partition(order.begin(), order.end(), [&](uint32_t i) {
        return std::find(own.begin(), own.end(), i) != own.end();
      });
    }
    std::vector<double> mass;
    for (const uint32_t i : order) mass.push_back(std::exp(scores[t][i] - scores[t][order[0]]));
    const auto counted = experts.normalize ? mass.begin() + experts.chosen : mass.end();
    const double sum = std::accumulate(mass.begin(), counted, 0.0);
    std::vector<double>& out = result.emplace_back(hidden);
    const auto add = [&](const std::string& expert, uint32_t width, double share) {
      const Rows own = mlp(weights, expert, width, {x[t]});
      for (size_t i = 0; i < hidden; ++i) out[i] += share * own[0][i];
    };
    for (uint32_t i = 0; i < experts.chosen; ++i) {
      add(base + "experts." + std::to_string(order[i]) + ".", experts.width, mass[i] / sum);
    }
    if (experts.shared == 0) continue;
    const Rows gate = product(weights, base + "shared_expert_gate", {x[t]}, 0, 1, 1, false);
    add(base + "shared_expert.", experts.shared, logistic(gate[0][0]));
  }
  // Experts that no token has chosen have weights too.
  for (uint32_t i = 0; i < experts.count; ++i) {
    (void)mlp(weights, base + "experts." + std::to_string(i) + ".", experts.width, {x[0]});
  }
  return result;
}

PlainModel::Rows PlainModel::delta_net(PlainWeights& weights, uint32_t layer, const Rows& x) const {
  const std::string base = name(layer, "linear_attn.");
  const uint32_t keys = delta.key_heads * delta.key_dim;
  const uint32_t values = delta.value_heads * delta.value_dim;
  const uint32_t all = 2 * keys + values;
  const Rows mixed = product(weights, base + "in_proj_qkv", x, 0, all, all, false);
  const Rows z = product(weights, base + "in_proj_z", x, 0, values, values, false);
  const uint32_t n = delta.value_heads;
  const Rows rate = product(weights, base + "in_proj_b", x, 0, n, n, false);
  const Rows decay = product(weights, base + "in_proj_a", x, 0, n, n, false);
  const auto& kernel = weights.vector(base + "conv1d.weight", uint64_t{all} * delta.kernel, 0.2);
  const auto& bias = weights.vector(base + "dt_bias", n, 0.5);
  const auto& log_decay = weights.vector(base + "A_log", n, 0.0);
  const auto& norm = weights.vector(base + "norm.weight", delta.value_dim, 1.0);
  std::vector<std::vector<double>> state(n, std::vector<double>(delta.key_dim * delta.value_dim));
  Rows result;
  for (size_t t = 0; t < x.size(); ++t) {
    std::vector<double> channels(all);
    for (size_t c = 0; c < all; ++c) {
      for (size_t k = 0; k < delta.kernel; ++k) {
        const size_t back = delta.kernel - 1 - k;
        if (t >= back) channels[c] += kernel[c * delta.kernel + k] * mixed[t - back][c];
      }
      channels[c] *= logistic(channels[c]);
    }
    const auto unit = [&](size_t first) {
      std::vector<double> own(
          channels.begin() + static_cast<std::ptrdiff_t>(first),
          channels.begin() + static_cast<std::ptrdiff_t>(first + delta.key_dim));
      const double squares = std::inner_product(own.begin(), own.end(), own.begin(), 0.0);
      for (double& value : own) value /= std::sqrt(squares + 1e-6);
      return own;
    };
    std::vector<double> out(values);
    for (uint32_t h = 0; h < n; ++h) {
      const uint32_t shared = h / (n / delta.key_heads) * delta.key_dim;
      const auto query = unit(shared);
      const auto key = unit(keys + shared);
      const double beta = logistic(rate[t][h]);
      const double kept =
          std::exp(-std::exp(log_decay[h]) * std::log1p(std::exp(decay[t][h] + bias[h])));
      double squares = 0;
      double* row = &out[size_t{h} * delta.value_dim];
      for (uint32_t v = 0; v < delta.value_dim; ++v) {
        double known = 0;
        for (uint32_t k = 0; k < delta.key_dim; ++k) {
          double& s = state[h][k * delta.value_dim + v];
          s *= kept;
          known += s * key[k];
        }
        const double value = channels[2 * keys + h * delta.value_dim + v];
        const double more = (value - known) * beta;
        for (uint32_t k = 0; k < delta.key_dim; ++k) {
          double& s = state[h][k * delta.value_dim + v];
          s += key[k] * more;
          row[v] += s * query[k] / std::sqrt(static_cast<double>(delta.key_dim));
        }
        squares += row[v] * row[v];
      }
      const double factor = 1 / std::sqrt(squares / delta.value_dim + eps);
      for (uint32_t v = 0; v < delta.value_dim; ++v) {
        const double gate = z[t][h * delta.value_dim + v];
        row[v] *= factor * norm[v] * gate * logistic(gate);
      }
    }
    result.push_back(out);
  }
  return product(weights, base + "out_proj", result, 0, hidden, hidden, false);
}

}  // namespace tandem::model
