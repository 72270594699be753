// What the kernel tests share: every instruction set of this machine, and inputs that provoke.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/kernels.h"

namespace tandem::kernels::cpu {

/// The tables that this machine can run, the reference left out.
inline std::vector<const CpuKernels*> fast_sets() {
  std::vector<const CpuKernels*> sets;
  for (const KernelSet& set : kernel_sets()) {
    if (set.kernels != nullptr && set.kernels != &scalar_kernels()) sets.push_back(set.kernels);
  }
  return sets;
}

/// How a vector of activations is filled.
enum class Fill { kRandom, kSmall, kHighest, kLowest, kAlternating, kZero };
inline constexpr Fill kFills[] = {Fill::kRandom, Fill::kSmall,       Fill::kHighest,
                                  Fill::kLowest, Fill::kAlternating, Fill::kZero};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  float normal() { return std::normal_distribution<float>()(engine_); }
  /// A finite float of any magnitude: bits at random.
  float any_bits() {
    while (true) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(engine_()));
      if (std::isfinite(x)) return x;
    }
  }
  int16_t activation(Fill fill, size_t i) {
    constexpr auto kMost = static_cast<int16_t>(arithmetic::kMaxActivation);
    switch (fill) {
      case Fill::kRandom:
        return static_cast<int16_t>(integer(-kMost, kMost));
      case Fill::kSmall:
        return static_cast<int16_t>(integer(-300, 300));
      case Fill::kHighest:
        return kMost;
      case Fill::kLowest:
        return static_cast<int16_t>(-kMost);
      case Fill::kAlternating:
        return i % 2 == 0 ? kMost : static_cast<int16_t>(-kMost);
      case Fill::kZero:
        return 0;
    }
    return 0;
  }

 private:
  std::mt19937_64 engine_;
};

/// Bits of floats, for messages that show which differ.
inline std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> result;
  result.reserve(values.size());
  for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

/// Activations of `tokens` tokens in the form that `set` takes.
inline ActivationRows make_rows(const CpuKernels& set, uint32_t columns, uint32_t tokens,
                                const std::vector<int16_t>& values,
                                const std::vector<int32_t>& exponents) {
  ActivationRows rows;
  rows.columns = columns;
  rows.padded = padded_columns(columns);
  rows.tokens = tokens;
  rows.values = AlignedArray<int16_t>(size_t{tokens} * rows.padded);
  rows.prepared = AlignedArray<uint8_t>(tokens * set.prepared_bytes(rows.padded));
  rows.exponents = exponents;
  rows.sums.assign(tokens, 0);
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t k = 0; k < columns; ++k) {
      rows.values[size_t{t} * rows.padded + k] = values[size_t{t} * columns + k];
    }
  }
  set.prepare(rows, 0, tokens);
  return rows;
}

}  // namespace tandem::kernels::cpu
