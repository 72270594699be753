// Products on WebGPU: the bits of the reference, whatever the shape, the numbers and the cut.
#include "kernels/gpu_support.h"
#include "webgpu/support.h"

namespace tandem::kernels::webgpu {
namespace {

using cpu::Fill;
using cpu::kFills;
using cpu::Random;
using gpu::Extreme;

void expect_equal_products(const PackedMatrix& matrix, const gpu::Product& product) {
  Kernels& kernels = test_kernels();
  const Matrix weights = must(kernels.upload(gpu::to_gpu(matrix)));
  const ActivationBuffers in = must(kernels.upload(
      gpu::to_gpu(product.values, product.exponents, padded_columns(matrix.columns))));
  const std::vector<float> expected = gpu::reference(matrix, product);
  // One word more than the results: it must keep its value.
  std::vector<uint32_t> poison(expected.size() + 1, 0x7fabcdefU);
  const Buffer out = must(test_device()->make_buffer(poison));
  const Buffer bias = must(test_device()->make_buffer(product.bias));
  Commands commands;
  must(kernels.matmul(weights, in, product.bias.empty() ? nullptr : &bias, out, commands));
  std::vector<uint32_t> bits = cpu::bits(expected);
  bits.push_back(poison.back());
  ASSERT_EQ(run_and_read(commands, out, poison.size()), bits)
      << gpu::name_of(matrix.format) << " rows " << matrix.rows << " columns " << matrix.columns
      << " tokens " << product.exponents.size();
}

class Matmul : public testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override { TANDEM_REQUIRE_DEVICE(); }
  void TearDown() override { test_kernels().set_matmul_shape(std::nullopt); }
};

TEST_P(Matmul, EqualsTheReferenceForRaggedShapes) {
  Random random(1);
  for (const uint32_t columns : {1U, 3U, 31U, 33U, 63U, 64U, 65U, 100U, 130U, 513U, 1056U}) {
    for (const uint32_t rows : {1U, 7U, 8U, 9U, 33U}) {
      const PackedMatrix matrix =
          gpu::make_matrix(GetParam(), rows, columns, Extreme::kRandom, random);
      const Fill fill = kFills[columns % 6];
      expect_equal_products(matrix,
                            gpu::make_product(matrix, 1 + rows % 3, fill, rows % 2 == 0, random));
    }
  }
}

TEST_P(Matmul, EqualsTheReferenceForEveryNumberOfTokens) {
  Random random(2);
  const PackedMatrix matrix = gpu::make_matrix(GetParam(), 21, 320, Extreme::kRandom, random);
  for (uint32_t tokens = 1; tokens <= 17; ++tokens) {
    expect_equal_products(
        matrix, gpu::make_product(matrix, tokens, Fill::kRandom, tokens % 2 == 0, random));
  }
}

TEST_P(Matmul, EveryCutGivesTheSameBits) {
  Random random(3);
  // Columns without padding, so that a word taken twice at a row's end shows.
  const PackedMatrix matrix = gpu::make_matrix(GetParam(), 37, 1088, Extreme::kRandom, random);
  const gpu::Product three = gpu::make_product(matrix, 3, Fill::kRandom, true, random);
  const gpu::Product one = gpu::make_product(matrix, 1, Fill::kRandom, true, random);
  for (const MatmulShape shape :
       {MatmulShape{1, 1, 32, 1}, MatmulShape{8, 2, 64, 4}, MatmulShape{16, 2, 64, 4},
        MatmulShape{32, 4, 64, 2}, MatmulShape{32, 4, 256, 2}, MatmulShape{64, 2, 128, 4},
        MatmulShape{64, 8, 64, 1}}) {
    test_kernels().set_matmul_shape(shape);
    expect_equal_products(matrix, three);
    expect_equal_products(matrix, one);
  }
}

TEST_P(Matmul, NoSumOverflowsInTheLongestRows) {
  Random random(4);
  for (const Extreme kind : {Extreme::kHighest, Extreme::kLowest, Extreme::kRandom}) {
    const PackedMatrix matrix = gpu::make_matrix(GetParam(), 3, arithmetic::kMaxRow, kind, random);
    for (const Fill fill : {Fill::kHighest, Fill::kLowest, Fill::kRandom}) {
      expect_equal_products(matrix, gpu::make_product(matrix, 1, fill, false, random));
    }
  }
}

// -128 in every low plane: the other end of the signed bytes.
TEST_P(Matmul, PlanesReachTheirLowestValues) {
  Random random(5);
  const PackedMatrix matrix = gpu::make_matrix(GetParam(), 16, 4096, Extreme::kHighest, random);
  for (const int16_t x : {int16_t{-32384}, int16_t{128}, int16_t{-128}, int16_t{32256}}) {
    gpu::Product product = gpu::make_product(matrix, 1, Fill::kZero, false, random);
    std::fill(product.values.begin(), product.values.end(), x);
    expect_equal_products(matrix, product);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Matmul,
                         testing::Values(WeightFormat::k8, WeightFormat::k4, WeightFormat::k6),
                         [](const auto& test) { return gpu::name_of(test.param); });

}  // namespace
}  // namespace tandem::kernels::webgpu
