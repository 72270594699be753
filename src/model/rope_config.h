// Rotary frequencies from a config.json, as transformers defines them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "arithmetic/rope.h"
#include "base/result.h"
#include "kernels/kernels.h"
#include "model/config.h"

namespace tandem::model {

/// Reads `rope_parameters` (newer configs) or `rope_scaling` and `rope_theta`; for families whose
/// sliding layers have a base of their own, both of them. Scaling types other than default, linear,
/// dynamic, yarn, llama3 and longrope ("su") are refused by name.
Status read_rope(const nlohmann::json& object, ModelConfig& config);

/// Cosines and sines of positions. Thread-safe once made.
class Rope {
 public:
  /// `far`: longrope's rotations as they are once the original context is passed.
  Rope(const RopeConfig& config, uint32_t head_dim, bool far = false);

  /// Rotations of `tokens` positions from `position` on, [tokens][head_dim / 2], appended to `out`;
  /// pairs that are not rotated come last.
  void rotations(uint32_t position, uint32_t tokens, std::vector<arithmetic::Rotation>& out) const;
  /// What the attention scale is multiplied by: attention_factor squared, since cosine and sine of
  /// query and key both carry it.
  [[nodiscard]] double score_factor() const { return score_factor_; }
  /// How heads are rotated by these, put at place `table` of the backend.
  [[nodiscard]] kernels::Rotary rotary(uint32_t table) const;

 private:
  [[nodiscard]] std::vector<uint64_t> steps(double theta) const;

  RopeConfig config_;
  uint32_t head_dim_;
  uint32_t channels_;  ///< rotated ones
  double score_factor_ = 1.0;
  std::vector<uint64_t> steps_;  ///< a position's phase, a pair of dimensions
};

}  // namespace tandem::model
