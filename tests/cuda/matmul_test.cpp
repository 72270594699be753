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
  // Columns without padding, so that a word taken twice at a row's end shows.
  const PackedMatrix matrix = gpu::make_matrix(GetParam(), 1037, 4160, Extreme::kRandom, random);
  const gpu::Product product = gpu::make_product(matrix, 1, Fill::kRandom, true, random);
  for (const uint32_t rows : {2U, 4U}) {
    for (const uint32_t lanes : {32U, 64U, 128U, 256U}) {
      for (const uint32_t threads : {lanes, 256U}) {
        for (const bool early : {false, true}) {
          dots_->set_shape({rows, 2 * rows, lanes, threads, early});
          expect_equal_products(matrix, product);
        }
      }
    }
  }
}

TEST_P(Matmul, CutsThatThereAreNotAreRefused) {
  Random random(6);
  const PackedMatrix matrix = gpu::make_matrix(GetParam(), 8, 64, Extreme::kRandom, random);
  const gpu::Product product = gpu::make_product(matrix, 1, Fill::kRandom, false, random);
  Result<Matrix> weights = dots_->upload(gpu::to_gpu(matrix));
  Result<Activations> in =
      dots_->upload(gpu::to_gpu(product.values, product.exponents, padded_columns(matrix.columns)));
  Result<Memory> out = (*test_device())->allocate(8 * sizeof(float));
  ASSERT_TRUE(weights.ok() && in.ok() && out.ok());
  for (const DotShape shape :
       {DotShape{.lanes = 48, .threads = 48}, DotShape{.lanes = 0}, DotShape{.threads = 0},
        DotShape{.lanes = 64, .threads = 96}, DotShape{.threads = 512}, DotShape{.rows = 3},
        DotShape{.loads = 5}}) {
    dots_->set_shape(shape);
    EXPECT_FALSE(dots_->matmul(*weights, *in, nullptr, *out).ok());
  }
}

// A short product that may begin as soon as a long one before it has begun, and reads what that
// one writes at its end. The long one leaves nearly the whole GPU free, and one warp goes through
// each of its longest rows: several times what the short one takes from its launch to its end,
// so one that did not wait would read older activations. The results of the long product are the
// bytes of the short one's planes, whatever they mean as numbers.
TEST_P(Matmul, AProductWaitsForWhatTheOneBeforeWrites) {
  Random random(7);
  constexpr uint32_t kColumns = 64;
  constexpr uint32_t kResults = 2 * kColumns / sizeof(float);
  const PackedMatrix slow =
      gpu::make_matrix(GetParam(), kResults, arithmetic::kMaxRow, Extreme::kRandom, random);
  const PackedMatrix quick = gpu::make_matrix(GetParam(), 64, kColumns, Extreme::kRandom, random);
  const auto upload_product = [&](const PackedMatrix& matrix, const gpu::Product& product) {
    return dots_->upload(
        gpu::to_gpu(product.values, product.exponents, padded_columns(matrix.columns)));
  };
  Result<Matrix> slow_weights = dots_->upload(gpu::to_gpu(slow));
  Result<Matrix> quick_weights = dots_->upload(gpu::to_gpu(quick));
  Result<Activations> slow_in =
      upload_product(slow, gpu::make_product(slow, 1, Fill::kRandom, false, random));
  ASSERT_TRUE(slow_weights.ok() && quick_weights.ok() && slow_in.ok());
  const gpu::Product older = gpu::make_product(quick, 1, Fill::kRandom, false, random);

  // The short product's results, after the long one or alone.
  std::vector<uint32_t> words(64);
  const auto run = [&](bool after_slow, bool early) {
    Result<Activations> x = upload_product(quick, older);
    Result<Memory> out = (*test_device())->allocate(words.size() * sizeof(uint32_t));
    ASSERT_TRUE(x.ok() && out.ok());
    ASSERT_EQ(x->planes.size(), kResults * sizeof(float));
    dots_->set_shape({.lanes = 32, .threads = 32, .early = early});
    if (after_slow) {
      ASSERT_TRUE(dots_->matmul(*slow_weights, *slow_in, nullptr, x->planes).ok());
    }
    ASSERT_TRUE(dots_->matmul(*quick_weights, *x, nullptr, *out).ok());
    ASSERT_TRUE((*test_device())->read(*out, words).ok());
  };
  ASSERT_NO_FATAL_FAILURE(run(false, false));
  const std::vector<uint32_t> of_older = words;
  ASSERT_NO_FATAL_FAILURE(run(true, false));
  const std::vector<uint32_t> expected = words;
  ASSERT_NE(expected, of_older);
  for (int i = 0; i < 20; ++i) {
    ASSERT_NO_FATAL_FAILURE(run(true, true));
    ASSERT_EQ(words, expected) << "repetition " << i;
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
