// The steps of gated delta nets of every set against the reference, bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "arithmetic/delta_rule.h"
#include "kernels/cpu/cpu_kernels.h"

namespace tandem::kernels::cpu {
namespace {

class Delta : public testing::TestWithParam<const CpuKernels*> {
 protected:
  float draw(int spread = 4) {
    const int exponent = static_cast<int>(random_() % (2 * spread + 1)) - spread;
    return std::ldexp(static_cast<float>(static_cast<int>(random_() % 65537) - 32768) * 0x1p-15F,
                      exponent);
  }
  std::vector<float> many(size_t count, int spread = 4) {
    std::vector<float> values(count);
    for (float& value : values) value = draw(spread);
    return values;
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  std::mt19937 random_{7};
};

TEST_P(Delta, StepsAreTheReferencesForEveryShape) {
  for (const uint32_t dim : {16U, 48U, 128U, 256U}) {
    for (const uint32_t tokens : {1U, 2U, 7U, 32U}) {
      for (const bool output : {true, false}) {
        // Magnitudes around where a state's values become zero, too.
        auto from = many(size_t{dim} * 16, dim == 48 ? 70 : 4);
        if (dim == 16) from[5] = INFINITY;
        if (dim == 256) from[9] = NAN;
        auto keys = many(size_t{tokens} * dim, 0);
        for (float& key : keys) key = std::nearbyint(key * 0x1p20F) * 0x1p-20F;
        const auto queries = keys;
        const auto values = many(size_t{tokens} * 16, dim == 48 ? 70 : 4);
        auto gates = many(size_t{tokens} * 2, 0);
        for (float& gate : gates) gate = std::fabs(gate);
        gates[0] = 0;
        const auto run = [&](const CpuKernels& set, bool in_place, std::vector<float>& out) {
          std::vector<float> state = in_place ? from : std::vector<float>(from.size(), 3.0F);
          DeltaTask task;
          task.from = in_place ? state.data() : from.data();
          task.to = state.data();
          task.key_dim = dim;
          task.tokens = tokens;
          task.keys = keys.data();
          task.queries = output ? queries.data() : nullptr;
          task.values = values.data();
          task.gates = gates.data();
          out.assign(size_t{tokens} * 16, 1.0F);
          task.out = out.data();
          task.key_stride = task.query_stride = dim;
          task.value_stride = task.out_stride = 16;
          task.gate_stride = 2;
          task.scale = 0.3F;
          set.delta(task);
          return state;
        };
        std::vector<float> wanted_out;
        std::vector<float> out;
        const auto wanted = run(scalar_kernels(), false, wanted_out);
        for (const bool in_place : {false, true}) {
          const auto state = run(*GetParam(), in_place, out);
          // Which of two values that are not numbers a sum takes is nobody's business.
          for (size_t i = 0; i < state.size(); ++i) {
            ASSERT_TRUE(std::bit_cast<uint32_t>(state[i]) == std::bit_cast<uint32_t>(wanted[i]) ||
                        (std::isnan(state[i]) && std::isnan(wanted[i])))
                << dim << " " << tokens << " " << i;
          }
          for (size_t i = 0; i < out.size(); ++i) {
            ASSERT_TRUE(std::bit_cast<uint32_t>(out[i]) == std::bit_cast<uint32_t>(wanted_out[i]) ||
                        (std::isnan(out[i]) && std::isnan(wanted_out[i])))
                << dim << " " << tokens << " " << i;
          }
        }
      }
    }
  }
}

TEST_P(Delta, ConvolutionsUnitVectorsAndGatesAreTheReferences) {
  for (const uint32_t n : {1U, 7U, 16U, 40U, 131U, 512U}) {
    for (const uint32_t kernel : {2U, 4U, 8U}) {
      const size_t stride = n + 3;
      const auto rows = many(stride * kernel);
      const auto weights = many(size_t{n} * kernel);
      std::vector<float> wanted(n);
      std::vector<float> out(n);
      scalar_kernels().convolve(rows.data(), stride, weights.data(), kernel, n, wanted.data());
      GetParam()->convolve(rows.data(), stride, weights.data(), kernel, n, out.data());
      EXPECT_TRUE(same(out, wanted)) << n << " " << kernel;
    }
    for (const int spread : {2, 20, 60}) {
      const auto x = many(n, spread);
      std::vector<int16_t> scratch(n);
      std::vector<float> wanted(n);
      std::vector<float> out(n);
      const bool fits = scalar_kernels().unit_vector(x.data(), n, scratch.data(), wanted.data());
      EXPECT_EQ(GetParam()->unit_vector(x.data(), n, scratch.data(), out.data()), fits);
      EXPECT_TRUE(same(out, wanted)) << n << " " << spread;
      wanted = out = many(n);
      scalar_kernels().gate(x.data(), n, wanted.data());
      GetParam()->gate(x.data(), n, out.data());
      EXPECT_TRUE(same(out, wanted)) << n << " " << spread;
    }
  }
}

std::vector<const CpuKernels*> sets() {
  std::vector<const CpuKernels*> list;
  for (const KernelSet& set : kernel_sets()) {
    if (set.kernels != nullptr && find_kernels(set.name).ok()) list.push_back(set.kernels);
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Sets, Delta, testing::ValuesIn(sets()),
                         [](const auto& set) { return std::string(set.param->isa); });

}  // namespace
}  // namespace tandem::kernels::cpu
