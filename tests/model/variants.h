// Models of the families in shapes and settings that the reference models don't have, and those of
// the reference models, for a plain forward pass.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/plain_model.h"

namespace tandem::model {

struct Variant {
  std::string name;
  std::string config;
  PlainModel plain;
  std::vector<PlainRope> ropes;
  std::vector<int> layer_rope = {0, 0, 0, 0};  ///< index into ropes; -1: none
  std::vector<uint32_t> window = {0, 0, 0, 0};

  PlainModel model() const {
    PlainModel result = plain;
    result.window = window;
    for (const int i : layer_rope) result.rope.push_back(i < 0 ? nullptr : &ropes[i]);
    return result;
  }
};

/// One or two of each family but gpt-oss.
std::vector<Variant> variants();
/// The settings of the reference models (not all), without a config.
std::vector<Variant> reference_models();

/// Root mean square and maximum of the differences, in standard deviations of `wanted`.
std::pair<double, double> error(const std::vector<double>& wanted, const std::vector<double>& had);

}  // namespace tandem::model
