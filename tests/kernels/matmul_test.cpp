// Products: every set's bits are those of the reference, whatever the shape and the numbers.
#include "support.h"

namespace tandem::kernels::cpu {
namespace {

enum class Weights { kRandom, kHighest, kLowest };

PackedMatrix random_matrix(WeightFormat format, uint32_t rows, uint32_t columns, Weights kind,
                           Random& random) {
  PackedMatrix matrix = make_packed(format, rows, columns);
  for (uint32_t r = 0; r < rows; ++r) {
    const auto scale =
        static_cast<float>(std::ldexp(1.0 + 0.001 * static_cast<double>(random.integer(0, 999)),
                                      static_cast<int>(random.integer(-30, 9))));
    if (format == WeightFormat::k8) {
      std::vector<int8_t> weights(columns);
      for (int8_t& w : weights) {
        w = static_cast<int8_t>(kind == Weights::kRandom    ? random.integer(-127, 127)
                                : kind == Weights::kHighest ? 127
                                                            : -127);
      }
      store_row8(matrix, r, weights, scale);
    } else {
      const int highest = format == WeightFormat::k4 ? 15 : 63;
      const int scale_limit = format == WeightFormat::k4 ? 63 : 127;
      const uint32_t groups = (columns + 31) / 32;
      std::vector<uint8_t> quants(columns);
      std::vector<uint8_t> scales(groups);
      std::vector<uint8_t> minimums(groups);
      for (uint8_t& q : quants) {
        q = static_cast<uint8_t>(kind == Weights::kRandom    ? random.integer(0, highest)
                                 : kind == Weights::kHighest ? highest
                                                             : 0);
      }
      for (uint32_t g = 0; g < groups; ++g) {
        scales[g] = static_cast<uint8_t>(kind == Weights::kRandom ? random.integer(0, scale_limit)
                                                                  : scale_limit);
        minimums[g] = static_cast<uint8_t>(kind == Weights::kRandom    ? random.integer(0, 63)
                                           : kind == Weights::kHighest ? 0
                                                                       : 63);
      }
      if (format == WeightFormat::k4) {
        store_row4(matrix, r, quants, scales, minimums, scale);
      } else {
        store_row6(matrix, r, quants, scales, scale);
      }
    }
  }
  return matrix;
}

void expect_equal_products(const PackedMatrix& matrix, uint32_t tokens, Fill fill, bool has_bias,
                           Random& random) {
  std::vector<int16_t> values(size_t{tokens} * matrix.columns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = random.activation(fill, i);
  std::vector<int32_t> exponents(tokens);
  for (int32_t& e : exponents) e = static_cast<int32_t>(random.integer(-94, 114));
  std::vector<float> bias(matrix.rows);
  for (float& b : bias) b = random.normal();
  const uint32_t stride = matrix.rows + 3;
  const auto run = [&](const CpuKernels& set) {
    const ActivationRows rows = make_rows(set, matrix.columns, tokens, values, exponents);
    // What is not a result must keep its value.
    std::vector<float> out(size_t{tokens} * stride, 12345.0F);
    const uint32_t tiles = tile_count(matrix.rows);
    const uint32_t cut = tiles / 3;
    const float* b = has_bias ? bias.data() : nullptr;
    set.matmul(matrix, rows, cut, tiles, b, out.data(), stride);
    set.matmul(matrix, rows, 0, cut, b, out.data(), stride);
    return out;
  };
  const std::vector<float> expected = run(scalar_kernels());
  for (const CpuKernels* set : fast_sets()) {
    ASSERT_EQ(bits(run(*set)), bits(expected))
        << set->isa << " rows " << matrix.rows << " columns " << matrix.columns << " tokens "
        << tokens << " fill " << static_cast<int>(fill);
  }
}

class Matmul : public testing::TestWithParam<WeightFormat> {};

TEST_P(Matmul, EqualsTheReferenceForEveryRaggedShape) {
  Random random(1);
  for (uint32_t columns = 1; columns <= 130; columns += columns % 32 < 30 ? 3 : 1) {
    for (const uint32_t rows : {1U, 15U, 16U, 17U, 33U, 130U}) {
      const PackedMatrix matrix =
          random_matrix(GetParam(), rows, columns, Weights::kRandom, random);
      expect_equal_products(matrix, 1 + columns % 7, kFills[columns % 6], rows % 2 == 0, random);
    }
  }
}

TEST_P(Matmul, EqualsTheReferenceForEveryNumberOfTokens) {
  Random random(2);
  const PackedMatrix matrix = random_matrix(GetParam(), 77, 320, Weights::kRandom, random);
  for (uint32_t tokens = 1; tokens <= 48; ++tokens) {
    expect_equal_products(matrix, tokens, Fill::kRandom, tokens % 2 == 0, random);
  }
}

TEST_P(Matmul, NoSumOverflowsInTheLongestRows) {
  Random random(3);
  for (const uint32_t columns : {4096U, 4160U, 16384U, arithmetic::kMaxRow}) {
    for (const Weights kind : {Weights::kHighest, Weights::kLowest, Weights::kRandom}) {
      const PackedMatrix matrix = random_matrix(GetParam(), 18, columns, kind, random);
      for (const Fill fill : {Fill::kHighest, Fill::kLowest, Fill::kRandom}) {
        expect_equal_products(matrix, 1, fill, false, random);
        expect_equal_products(matrix, 3, fill, true, random);
      }
    }
  }
}

// So many tokens that sets may expand the weights first, and more than they take at a time.
TEST_P(Matmul, NoSumOverflowsWithManyTokens) {
  Random random(5);
  for (const Weights kind : {Weights::kHighest, Weights::kLowest, Weights::kRandom}) {
    for (const Fill fill : {Fill::kHighest, Fill::kLowest, Fill::kRandom}) {
      expect_equal_products(random_matrix(GetParam(), 33, 4160, kind, random), 49, fill, true,
                            random);
    }
  }
  const PackedMatrix longest =
      random_matrix(GetParam(), 17, arithmetic::kMaxRow, Weights::kHighest, random);
  expect_equal_products(longest, 48, Fill::kHighest, false, random);
  // Rows enough for several groups of tiles, and tokens that come in blocks that overlap.
  const PackedMatrix tall = random_matrix(GetParam(), 700, 1100, Weights::kRandom, random);
  for (const uint32_t tokens : {17U, 33U}) {
    expect_equal_products(tall, tokens, Fill::kRandom, true, random);
  }
  const PackedMatrix wide = random_matrix(GetParam(), 35, 330, Weights::kRandom, random);
  expect_equal_products(wide, 300, Fill::kRandom, true, random);
}

// Register blocks of every width, with the largest sums.
TEST_P(Matmul, NoSumOverflowsWithAFewTokens) {
  Random random(6);
  for (const uint32_t columns : {8192U, 8256U}) {
    for (const Weights kind : {Weights::kHighest, Weights::kLowest}) {
      const PackedMatrix matrix = random_matrix(GetParam(), 18, columns, kind, random);
      for (uint32_t tokens = 2; tokens <= 12; ++tokens) {
        expect_equal_products(matrix, tokens, tokens % 2 == 0 ? Fill::kHighest : Fill::kLowest,
                              false, random);
      }
    }
  }
  const PackedMatrix longest =
      random_matrix(GetParam(), 16, arithmetic::kMaxRow, Weights::kHighest, random);
  expect_equal_products(longest, 6, Fill::kLowest, false, random);
}

// How many products a 32-bit sum holds depends on the weights: these are at both sides of where
// sets that look at them take 64, 128, 256 or 512 columns together.
TEST_P(Matmul, NoSumOverflowsWhateverTheWeightsAddUpTo) {
  if (GetParam() == WeightFormat::k8) GTEST_SKIP() << "8 bits have no scales of groups";
  Random random(7);
  constexpr uint32_t kColumns = 1100;
  const std::vector<uint8_t> minimums((kColumns + 31) / 32, 0);
  for (const uint8_t scale : {4, 5, 8, 9, 16, 17, 18, 33, 34, 35, 63}) {
    for (const bool highest : {true, false}) {
      PackedMatrix matrix = make_packed(GetParam(), 17, kColumns);
      const std::vector<uint8_t> scales(minimums.size(), scale);
      for (uint32_t row = 0; row < matrix.rows; ++row) {
        if (GetParam() == WeightFormat::k4) {
          const std::vector<uint8_t> quants(kColumns, highest ? 15 : 0);
          store_row4(matrix, row, quants, scales, highest ? minimums : scales, 1.0F);
        } else {
          store_row6(matrix, row, std::vector<uint8_t>(kColumns, highest ? 63 : 0), scales, 1.0F);
        }
      }
      expect_equal_products(matrix, 50, highest ? Fill::kHighest : Fill::kLowest, false, random);
    }
  }
}

// -128 in every low plane: the other end of the signed bytes.
TEST_P(Matmul, PlanesReachTheirLowestValues) {
  Random random(4);
  const PackedMatrix matrix = random_matrix(GetParam(), 16, 4096, Weights::kHighest, random);
  for (const int16_t x : {int16_t{-32384}, int16_t{128}, int16_t{-128}, int16_t{32384 - 128}}) {
    const std::vector<int16_t> values(4096, x);
    const ActivationRows expected_rows = make_rows(scalar_kernels(), 4096, 1, values, {0});
    std::vector<float> expected(16);
    scalar_kernels().matmul(matrix, expected_rows, 0, 1, nullptr, expected.data(), 16);
    for (const CpuKernels* set : fast_sets()) {
      const ActivationRows rows = make_rows(*set, 4096, 1, values, {0});
      std::vector<float> out(16);
      set->matmul(matrix, rows, 0, 1, nullptr, out.data(), 16);
      EXPECT_EQ(bits(out), bits(expected)) << set->isa << " " << x;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Matmul,
                         testing::Values(WeightFormat::k8, WeightFormat::k4, WeightFormat::k6),
                         [](const auto& test) {
                           return test.param == WeightFormat::k8   ? "Weights8"
                                  : test.param == WeightFormat::k4 ? "Weights4"
                                                                   : "Weights6";
                         });

}  // namespace
}  // namespace tandem::kernels::cpu
