// The elementwise steps: every set's bits are those of the reference.
#include <limits>

#include "arithmetic/rope.h"
#include "support.h"

namespace tandem::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Vectors that provoke: any bits, one scale, ties of the rounding, zeros of both signs, the largest
// and smallest magnitudes, and what is not a number at each kind of place.
std::vector<std::vector<float>> vectors(size_t n, Random& random) {
  std::vector<std::vector<float>> result(9, std::vector<float>(n));
  for (size_t i = 0; i < n; ++i) {
    result[0][i] = random.normal();
    result[1][i] = random.any_bits();
    result[2][i] = random.normal() * 1e-30F;
    result[3][i] = random.normal() * 1e30F;
    result[4][i] = static_cast<float>(random.integer(-65278, 65278)) * 0.5F;  // ties
    result[5][i] = i % 2 == 0 ? 0.0F : -0.0F;
    result[6][i] = i % 3 == 0 ? 3.4e38F : -1e-44F;
    result[7][i] = random.normal() * 40.0F;
    result[8][i] = std::ldexp(random.normal(), static_cast<int>(random.integer(-90, -70)));
  }
  result[4][n / 2] = 32639.0F;
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    for (const size_t place : {size_t{0}, n / 2, n - 1}) {
      result.push_back(result[0]);
      result.back()[place] = bad;
    }
  }
  return result;
}

// Lengths around multiples of every vector width.
std::vector<size_t> lengths() {
  std::vector<size_t> result;
  for (size_t n = 1; n <= 130; n += n < 40 ? 1 : 7) result.push_back(n);
  result.push_back(1000);
  return result;
}

bool finite(const std::vector<float>& x) {
  for (const float v : x) {
    if (!std::isfinite(v)) return false;
  }
  return true;
}

TEST(Elementwise, QuantizeEqualsTheReference) {
  Random random(1);
  for (const size_t n : lengths()) {
    for (const std::vector<float>& x : vectors(n, random)) {
      std::vector<int16_t> expected(n, 77);
      int32_t expected_exponent = 0;
      const bool expected_ok =
          scalar_kernels().quantize(x.data(), n, expected.data(), &expected_exponent);
      EXPECT_EQ(expected_ok, finite(x));
      for (const CpuKernels* set : fast_sets()) {
        std::vector<int16_t> values(n + 1, 77);
        int32_t exponent = 0;
        EXPECT_EQ(set->quantize(x.data(), n, values.data(), &exponent), expected_ok);
        EXPECT_EQ(exponent, expected_exponent);
        EXPECT_EQ(values.back(), 77);
        values.pop_back();
        ASSERT_EQ(values, expected) << set->isa << " " << n;
      }
    }
  }
}

TEST(Elementwise, NormsEqualTheReference) {
  Random random(2);
  for (const size_t n : lengths()) {
    std::vector<float> weight(n);
    std::vector<float> bias(n);
    for (size_t i = 0; i < n; ++i) {
      weight[i] = random.normal();
      bias[i] = random.normal();
    }
    for (const double epsilon : {1e-5, 0.0}) {
      const arithmetic::NormConstants constants(static_cast<uint32_t>(n), epsilon);
      for (const std::vector<float>& x : vectors(n, random)) {
        for (const bool layer : {false, true}) {
          const auto run = [&](const CpuKernels& set, std::vector<float>& y) {
            std::vector<int16_t> scratch(n);
            return layer
                       ? set.layer_norm(x.data(), weight.data(), bias.data(), constants,
                                        scratch.data(), y.data())
                       : set.rms_norm(x.data(), weight.data(), constants, scratch.data(), y.data());
          };
          std::vector<float> expected(n, 5.0F);
          const bool expected_ok = run(scalar_kernels(), expected);
          for (const CpuKernels* set : fast_sets()) {
            std::vector<float> y(n, 5.0F);
            ASSERT_EQ(run(*set, y), expected_ok) << set->isa;
            ASSERT_EQ(bits(y), bits(expected)) << set->isa << " " << n << (layer ? " layer" : "");
          }
        }
      }
    }
  }
}

// Bits of results; all that are not numbers count as the same.
std::vector<uint32_t> number_bits(const std::vector<float>& values) {
  std::vector<uint32_t> result = bits(values);
  for (uint32_t& b : result) {
    if ((b & 0x7fffffffU) > arithmetic::kInfinityBits) b = 0x7fc00000U;
  }
  return result;
}

TEST(Elementwise, ActivationFunctionsAndSumsEqualTheReference) {
  Random random(3);
  for (const size_t n : lengths()) {
    for (const std::vector<float>& x : vectors(n, random)) {
      std::vector<float> up(n);
      for (float& u : up) u = random.normal();
      for (int step = 0; step < 3; ++step) {
        const auto run = [&](const CpuKernels& set) {
          std::vector<float> out(n + 1, 9.0F);
          if (step == 0) set.gated_silu(x.data(), up.data(), n, out.data());
          if (step == 1) set.gelu(x.data(), n, out.data());
          if (step == 2) {
            std::copy(x.begin(), x.end(), out.begin());
            set.add(out.data(), up.data(), n);
          }
          EXPECT_EQ(out.back(), 9.0F);
          return number_bits(out);
        };
        const std::vector<uint32_t> expected = run(scalar_kernels());
        for (const CpuKernels* set : fast_sets()) {
          ASSERT_EQ(run(*set), expected) << set->isa << " step " << step << " " << n;
        }
      }
    }
  }
}

TEST(Elementwise, ExpertsActivationsAndSumsEqualTheReference) {
  Random random(9);
  for (const size_t n : lengths()) {
    std::vector<std::vector<float>> rows = vectors(n, random);
    for (const std::vector<float>& x : rows) {
      std::vector<float> up(n);
      for (float& u : up) u = random.normal() * 8.0F;
      up[n / 3] = kNan;
      const auto run = [&](const CpuKernels& set) {
        std::vector<float> out(n + 1, 9.0F);
        set.clamped_swiglu(x.data(), up.data(), n, 1.702F, 7.0F, out.data());
        EXPECT_EQ(out.back(), 9.0F);
        return number_bits(out);
      };
      const std::vector<uint32_t> expected = run(scalar_kernels());
      for (const CpuKernels* set : fast_sets()) ASSERT_EQ(run(*set), expected) << set->isa << n;
    }
    std::vector<const float*> parts;
    std::vector<float> weights;
    for (const std::vector<float>& row : rows) {
      parts.push_back(row.data());
      weights.push_back(random.normal());
      const auto run = [&](const CpuKernels& set) {
        std::vector<float> out(n + 1, 9.0F);
        set.weighted_sum(parts.data(), weights.data(), parts.size(), n, out.data());
        EXPECT_EQ(out.back(), 9.0F);
        return number_bits(out);
      };
      const std::vector<uint32_t> expected = run(scalar_kernels());
      for (const CpuKernels* set : fast_sets()) ASSERT_EQ(run(*set), expected) << set->isa << n;
    }
  }
}

// Every binade's start and its neighbours, and a dense walk through the interesting range.
TEST(Elementwise, LogisticEqualsTheReferenceOverItsRange) {
  std::vector<float> x;
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (int offset = -2; offset <= 2; ++offset) {
      const auto bits_of = static_cast<uint32_t>(static_cast<int>(exponent << 23) + offset);
      x.push_back(std::bit_cast<float>(bits_of & 0x7fffffffU));
      x.push_back(std::bit_cast<float>(bits_of | 0x80000000U));
    }
  }
  for (int i = -200000; i <= 200000; ++i) x.push_back(static_cast<float>(i) * 0.00025F);
  const std::vector<float> one(x.size(), 1.0F);
  std::vector<float> expected(x.size());
  scalar_kernels().gated_silu(x.data(), one.data(), x.size(), expected.data());
  for (const CpuKernels* set : fast_sets()) {
    std::vector<float> out(x.size());
    set->gated_silu(x.data(), one.data(), x.size(), out.data());
    EXPECT_EQ(number_bits(out), number_bits(expected)) << set->isa;
  }
}

TEST(Elementwise, BoundaryEqualsTheReference) {
  Random random(4);
  for (const size_t n : lengths()) {
    for (const std::vector<float>& x : vectors(n, random)) {
      std::vector<uint16_t> expected(n);
      int16_t expected_exponent = 0;
      const bool expected_ok =
          scalar_kernels().to_boundary(x.data(), n, expected.data(), &expected_exponent);
      for (const CpuKernels* set : fast_sets()) {
        std::vector<uint16_t> half(n);
        int16_t exponent = 0;
        ASSERT_EQ(set->to_boundary(x.data(), n, half.data(), &exponent), expected_ok);
        ASSERT_EQ(exponent, expected_exponent);
        ASSERT_EQ(half, expected) << set->isa << " " << n;
        std::vector<float> back(n);
        std::vector<float> expected_back(n);
        set->from_boundary(half.data(), n, exponent, back.data());
        scalar_kernels().from_boundary(half.data(), n, exponent, expected_back.data());
        ASSERT_EQ(bits(back), bits(expected_back)) << set->isa;
      }
    }
  }
}

TEST(Elementwise, EveryHalfWidensAsInTheReference) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for (const int16_t exponent : {-94, 0, 100}) {
    std::vector<float> expected(halves.size());
    scalar_kernels().from_boundary(halves.data(), halves.size(), exponent, expected.data());
    for (const CpuKernels* set : fast_sets()) {
      std::vector<float> x(halves.size());
      set->from_boundary(halves.data(), halves.size(), exponent, x.data());
      EXPECT_EQ(number_bits(x), number_bits(expected)) << set->isa;
    }
  }
}

TEST(Elementwise, RotateEqualsTheReference) {
  Random random(5);
  for (uint32_t n = 2; n <= 260; n += n < 80 ? 2 : 18) {
    for (const Fill fill : kFills) {
      for (const bool extreme : {false, true}) {
        std::vector<int16_t> x(n);
        for (size_t i = 0; i < n; ++i) x[i] = random.activation(fill, i);
        std::vector<arithmetic::Rotation> rotations(n / 2);
        for (arithmetic::Rotation& r : rotations) {
          r = arithmetic::rotation(static_cast<uint64_t>(random.integer(INT64_MIN, INT64_MAX)));
          // Not a rotation, but within what 32 bits must hold.
          if (extreme) r = {random.integer(0, 1) == 0 ? 32768 : -32768, 32768};
        }
        std::vector<int16_t> expected = x;
        std::vector<int32_t> scratch(n);
        const int32_t expected_exponent =
            scalar_kernels().rotate(expected.data(), n, -7, rotations.data(), scratch.data());
        for (const CpuKernels* set : fast_sets()) {
          std::vector<int16_t> y = x;
          ASSERT_EQ(set->rotate(y.data(), n, -7, rotations.data(), scratch.data()),
                    expected_exponent);
          ASSERT_EQ(y, expected) << set->isa << " " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels::cpu
