// Normally distributed BF16 weights from a counter, fast enough that a disk is the limit.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint_maker/shapes.h"

namespace tandem::tools {

/// The weights of one tensor: element i depends on seed, name and i alone, so that any part can be
/// made anywhere in any order.
class RandomWeights {
 public:
  RandomWeights(uint64_t seed, std::string_view tensor, Values values);

  /// Elements [first, first + weights.size()); `first` must be a multiple of 4.
  void fill(uint64_t first, std::span<uint16_t> weights) const;

 private:
  uint64_t key_;
  std::array<uint16_t, 4096> quantiles_;  ///< BF16 of mean + deviation * equally likely quantiles
};

}  // namespace tandem::tools
