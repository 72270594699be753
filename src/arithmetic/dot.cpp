#include "arithmetic/dot.h"

namespace tandem::arithmetic {

int64_t dot8(std::span<const int8_t> weights, std::span<const int16_t> x) {
  int64_t sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) sum += int32_t{weights[i]} * int32_t{x[i]};
  return sum;
}

int64_t dot4(const Row4& row, std::span<const int16_t> x) {
  int64_t sum = 0;
  for (size_t i = 0; i < row.quants.size(); ++i) {
    const size_t group = i / kGroup;
    const int32_t weight =
        row.scales[group] * row.quants[i] - kMinimumUnit * int32_t{row.minimums[group]};
    sum += int64_t{weight} * x[i];
  }
  return sum;
}

int64_t dot6(const Row6& row, std::span<const int16_t> x) {
  int64_t sum = 0;
  for (size_t i = 0; i < row.quants.size(); ++i) {
    const int32_t weight = row.scales[i / kGroup] * (row.quants[i] - 32);
    sum += int64_t{weight} * x[i];
  }
  return sum;
}

}  // namespace tandem::arithmetic
