#include "arithmetic/router.h"

#include <algorithm>
#include <cstddef>

#include "arithmetic/attention.h"
#include "arithmetic/exponential.h"

namespace tandem::arithmetic {
namespace {

constexpr uint32_t kSteps = 1U << 22;  // of 2^-16: a distance that no weight is left at
constexpr uint32_t kNoWeight = 42;     // halvings from which on a weight counts as zero

// How far below the largest logit, in units of 2^-16, logarithm to base 2.
uint32_t distance(float largest, float logit) {
  const float difference = largest - logit;
  const float scaled = difference * kLog2e16;
  return scaled < static_cast<float>(kSteps) ? static_cast<uint32_t>(round_to_int(scaled)) : kSteps;
}

}  // namespace

bool route(std::span<const float> logits, bool normalize, std::span<uint32_t> experts,
           std::span<float> weights) {
  const size_t chosen = experts.size();
  for (size_t i = 0; i < chosen; ++i) {
    experts[i] = static_cast<uint32_t>(i);
    weights[i] = 0;
  }
  for (const float logit : logits) {
    if (magnitude_bits(logit) >= kInfinityBits) return false;
  }
  // The chosen ones so far, best first; an equal logit that comes later stays behind.
  size_t kept = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (kept == chosen && logits[i] <= logits[experts[kept - 1]]) continue;
    size_t place = kept < chosen ? kept++ : chosen - 1;
    for (; place > 0 && logits[i] > logits[experts[place - 1]]; --place) {
      experts[place] = experts[place - 1];
    }
    experts[place] = static_cast<uint32_t>(i);
  }
  const float largest = logits[experts[0]];
  uint64_t denominator = 0;
  if (normalize) {
    for (const uint32_t expert : experts)
      denominator += softmax_mass(distance(largest, logits[expert]));
  } else {
    for (const float logit : logits) denominator += softmax_mass(distance(largest, logit));
  }
  const Scaled inverse = reciprocal(denominator);
  const auto factor = static_cast<float>(inverse.mantissa);
  for (size_t i = 0; i < chosen; ++i) {
    const uint32_t d = distance(largest, logits[experts[i]]);
    const uint32_t k = d >> 16;
    if (k >= kNoWeight) continue;
    const float product = static_cast<float>(exp2_fraction(d & 65535U)) * factor;
    weights[i] = product * power_of_two(inverse.exponent + 24 - static_cast<int>(k));
  }
  return true;
}

void weighted_sum(std::span<const float* const> rows, std::span<const float> weights,
                  std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    float sum = weights[0] * rows[0][i];
    for (size_t r = 1; r < rows.size(); ++r) {
      const float product = weights[r] * rows[r][i];
      sum += product;
    }
    out[i] = sum;
  }
}

}  // namespace tandem::arithmetic
