// Products on an NVIDIA GPU: the bits of the reference, whatever the shape, the numbers and the
// cut. Skipped, with the reason, where there is none.
#include <memory>

#include "kernels/cuda/dots.h"
#include "kernels/gpu_support.h"

namespace tandem::kernels::cuda {
namespace {

using cpu::Fill;
using cpu::kFills;
using cpu::Random;
using gpu::Extreme;

Result<std::unique_ptr<Device>>& test_device() {
  static Result<std::unique_ptr<Device>> device = Device::open();
  return device;
}

class Matmul : public testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Device>>& device = test_device();
    if (device.ok()) {
      dots_ = std::make_unique<Dots>(**device);
    } else if (device.error().kind == ErrorKind::kNotFound ||
               device.error().kind == ErrorKind::kUnsupported) {
      GTEST_SKIP() << device.error().message;
    } else {
      FAIL() << device.error().message;
    }
  }

  void expect_equal_products(const PackedMatrix& matrix, const gpu::Product& product) {
    Device& device = **test_device();
    Result<Matrix> weights = dots_->upload(gpu::to_gpu(matrix));
    Result<Activations> in = dots_->upload(
        gpu::to_gpu(product.values, product.exponents, padded_columns(matrix.columns)));
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    ASSERT_TRUE(in.ok()) << in.error().message;
    std::vector<float> expected = gpu::reference(matrix, product);
    // One word more than the results: it must keep its value.
    expected.push_back(12345.0F);
    std::vector<float> got(expected.size(), 12345.0F);
    Result<Memory> out = device.upload(got);
    Result<Memory> bias = device.upload(product.bias);
    ASSERT_TRUE(out.ok() && bias.ok());
    const Status started =
        dots_->matmul(*weights, *in, product.bias.empty() ? nullptr : &*bias, *out);
    ASSERT_TRUE(started.ok()) << started.error().message;
    const Status read = device.read(*out, got);
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ(cpu::bits(got), cpu::bits(expected))
        << gpu::name_of(matrix.format) << " rows " << matrix.rows << " columns " << matrix.columns
        << " tokens " << product.exponents.size();
  }

  std::unique_ptr<Dots> dots_;
};

TEST_P(Matmul, EqualsTheReferenceForRaggedShapes) {
  Random random(1);
  for (uint32_t columns = 1; columns <= 300; columns += columns % 32 < 30 ? 3 : 1) {
    for (const uint32_t rows : {1U, 15U, 16U, 17U, 33U, 130U}) {
      const PackedMatrix matrix =
          gpu::make_matrix(GetParam(), rows, columns, Extreme::kRandom, random);
      expect_equal_products(matrix, gpu::make_product(matrix, 1 + columns % 7, kFills[columns % 6],
                                                      rows % 2 == 0, random));
    }
  }
}

TEST_P(Matmul, EqualsTheReferenceForEveryNumberOfTokens) {
  Random random(2);
  const PackedMatrix matrix = gpu::make_matrix(GetParam(), 77, 3200, Extreme::kRandom, random);
  for (uint32_t tokens = 1; tokens <= 33; ++tokens) {
    expect_equal_products(
        matrix, gpu::make_product(matrix, tokens, Fill::kRandom, tokens % 2 == 0, random));
  }
}

TEST_P(Matmul, EveryCutGivesTheSameBits) {
  Random random(3);
  const PackedMatrix matrix = gpu::make_matrix(GetParam(), 1037, 4100, Extreme::kRandom, random);
  const gpu::Product product = gpu::make_product(matrix, 1, Fill::kRandom, true, random);
  for (const uint32_t rows : {1U, 2U, 4U}) {
    for (const uint32_t threads : {32U, 128U, 256U, 1024U}) {
      dots_->set_shape({.rows = rows, .threads = threads});
      expect_equal_products(matrix, product);
    }
  }
}

TEST_P(Matmul, NoSumOverflowsInTheLongestRows) {
  Random random(4);
  for (const uint32_t columns : {4096U, 16384U, arithmetic::kMaxRow}) {
    for (const Extreme kind : {Extreme::kHighest, Extreme::kLowest, Extreme::kRandom}) {
      const PackedMatrix matrix = gpu::make_matrix(GetParam(), 18, columns, kind, random);
      for (const Fill fill : {Fill::kHighest, Fill::kLowest, Fill::kRandom}) {
        expect_equal_products(matrix, gpu::make_product(matrix, 1, fill, false, random));
        expect_equal_products(matrix, gpu::make_product(matrix, 3, fill, true, random));
      }
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
}  // namespace tandem::kernels::cuda
