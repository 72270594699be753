#include "checkpoint_maker/random_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "weights/dtype.h"

namespace tandem::tools {

namespace {

/// Finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of x reaches every bit.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The middle of each of 4096 equally likely slices of the standard normal distribution.
std::vector<double> normal_quantiles() {
  std::vector<double> quantiles(4096);
  for (size_t i = 0; i < quantiles.size(); ++i) {
    const double wanted = (static_cast<double>(i) + 0.5) / 4096;
    double low = -8;
    double high = 8;
    while (high - low > 1e-9) {
      const double middle = (low + high) / 2;
      (std::erfc(-middle / std::sqrt(2.0)) / 2 < wanted ? low : high) = middle;
    }
    quantiles[i] = (low + high) / 2;
  }
  return quantiles;
}

}  // namespace

RandomWeights::RandomWeights(uint64_t seed, std::string_view tensor, Values values)
    : key_(mix(seed + 0x9e3779b97f4a7c15u)) {
  static const std::vector<double> quantiles = normal_quantiles();
  for (const char c : tensor) key_ = mix(key_ ^ static_cast<unsigned char>(c));
  for (size_t i = 0; i < quantiles_.size(); ++i) {
    quantiles_[i] =
        weights::f32_to_bf16(static_cast<float>(values.mean + values.deviation * quantiles[i]));
  }
}

void RandomWeights::fill(uint64_t first, std::span<uint16_t> weights) const {
  // One mix gives four draws of 12 bits.
  uint64_t counter = key_ + first / 4 * 0x9e3779b97f4a7c15u;
  const size_t whole = weights.size() / 4 * 4;
  for (size_t i = 0; i < whole; i += 4, counter += 0x9e3779b97f4a7c15u) {
    const uint64_t bits = mix(counter);
    weights[i] = quantiles_[bits & 4095];
    weights[i + 1] = quantiles_[bits >> 16 & 4095];
    weights[i + 2] = quantiles_[bits >> 32 & 4095];
    weights[i + 3] = quantiles_[bits >> 48 & 4095];
  }
  const uint64_t bits = mix(counter);
  for (size_t i = whole; i < weights.size(); ++i) {
    weights[i] = quantiles_[bits >> (16 * (i - whole)) & 4095];
  }
}

}  // namespace tandem::tools
