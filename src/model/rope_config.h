// Rotary frequencies from a config.json, as transformers defines them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "arithmetic/rope.h"
#include "base/result.h"
#include "model/config.h"

namespace tandem::model {

/// Reads `rope_parameters` (newer configs) or `rope_scaling` and `rope_theta`. Scaling types other
/// than default, linear, dynamic, yarn and llama3 are refused by name.
Status read_rope(const nlohmann::json& object, ModelConfig& config);

/// Cosines and sines of positions. Thread-safe once made.
class Rope {
 public:
  explicit Rope(const ModelConfig& config);

  /// Rotations of `tokens` positions from `position` on, [tokens][rotated values / 2],
  /// appended to `out`.
  void rotations(uint32_t position, uint32_t tokens, std::vector<arithmetic::Rotation>& out) const;
  /// What the attention scale is multiplied by: attention_factor squared, since cosine and sine of
  /// query and key both carry it.
  [[nodiscard]] double score_factor() const { return score_factor_; }

 private:
  [[nodiscard]] std::vector<uint64_t> steps(double theta) const;

  RopeConfig config_;
  uint32_t head_dim_;  ///< values of it that are rotated
  double score_factor_ = 1.0;
  std::vector<uint64_t> steps_;  ///< a position's phase, a pair of dimensions
};

}  // namespace tandem::model
