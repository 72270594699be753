#include "arithmetic/attention.h"

#include <algorithm>

namespace tandem::arithmetic {

float score_constant(double scale) {
  return static_cast<float>(scale * 1.4426950408889634 * 65536.0);
}

int32_t score(const Vector16& q, const Vector16& k, float constant) {
  int64_t sum = 0;
  for (size_t i = 0; i < q.values.size(); ++i) sum += int32_t{q.values[i]} * int32_t{k.values[i]};
  const int exponent = std::clamp(q.exponent + k.exponent, -100, 100);
  const float value = static_cast<float>(sum) * (constant * power_of_two(exponent));
  return round_to_int(std::clamp(value, -0x1p30F, 0x1p30F));
}

int32_t sink_score(float logit) {
  const float value = logit * kLog2e16;
  if (!(value > -0x1p30F)) return -(1 << 30);
  return round_to_int(std::min(value, 0x1p30F));
}

void attention(const AttentionInput& input, std::span<float> out) {
  const size_t positions = input.keys.size();
  std::vector<int32_t> scores(positions);
  int32_t largest = input.sink;
  for (size_t j = 0; j < positions; ++j) {
    scores[j] = score(input.query, input.keys[j], input.constant);
    largest = std::max(largest, scores[j]);
  }
  uint64_t denominator = softmax_mass(static_cast<uint32_t>(int64_t{largest} - input.sink));
  std::vector<int32_t> shifts(positions);
  std::vector<uint32_t> mantissas(positions);
  int32_t least = kMostShift;
  for (size_t j = 0; j < positions; ++j) {
    const auto distance = static_cast<uint32_t>(int64_t{largest} - scores[j]);
    const uint32_t k = distance >> 16;
    mantissas[j] = exp2_fraction(distance & 65535U);
    denominator += softmax_mass(distance);
    shifts[j] = static_cast<int32_t>(k) - input.values[j].exponent;
    least = std::min(least, shifts[j]);
  }
  std::vector<int64_t> total(out.size());
  std::vector<int64_t> block_sum(out.size());
  for (size_t begin = 0; begin < positions;) {
    const size_t in_block = kBlock - (input.first + begin) % kBlock;
    const size_t end = std::min(positions, begin + in_block);
    const int32_t base = *std::min_element(shifts.begin() + static_cast<ptrdiff_t>(begin),
                                           shifts.begin() + static_cast<ptrdiff_t>(end));
    std::fill(block_sum.begin(), block_sum.end(), 0);
    for (size_t j = begin; j < end; ++j) {
      const int32_t shift = shifts[j] - base;
      if (shift >= 24) continue;
      const int64_t weight = shift_round(int64_t{mantissas[j]} << 7, static_cast<unsigned>(shift));
      for (size_t c = 0; c < out.size(); ++c) block_sum[c] += weight * input.values[j].values[c];
    }
    const int32_t down = base - least;
    if (down < 63) {
      for (size_t c = 0; c < out.size(); ++c) {
        total[c] += shift_round(block_sum[c] * 64, static_cast<unsigned>(down));
      }
    }
    begin = end;
  }
  const Scaled inverse = reciprocal(denominator);
  const float factor = static_cast<float>(inverse.mantissa) * 0x1p-40F;
  const float power = power_of_two(inverse.exponent + 51 - least);
  for (size_t c = 0; c < out.size(); ++c) {
    const float product = static_cast<float>(total[c]) * factor;
    out[c] = product * power;
  }
}

}  // namespace tandem::arithmetic
