// The steps that are not products, on WebGPU: the bits of src/arithmetic, for ordinary rows and at
// the edges.
#include "arithmetic/activation.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"
#include "arithmetic/rope.h"
#include "kernels/webgpu/shaders.h"
#include "webgpu/support.h"

namespace tandem::kernels::webgpu {
namespace {

using cpu::Random;

// Kinds of rows: what a step must stand.
enum class Row {
  kNormal,
  kOutlier,  // one number far above the rest
  kWide,     // any finite bits, subnormals too, below what a norm refuses
  kTies,     // halves of the unit
  kTiny,     // below 2^-80: counts as zero
  kEdge,     // just below and above 2^-80
  kLargest,  // 2^107
  kMaximum,  // at the step of the exponent: 32639.5
  kZero,
  kInfinite,
};
constexpr Row kRows[] = {Row::kNormal, Row::kOutlier, Row::kWide,    Row::kTies, Row::kTiny,
                         Row::kEdge,   Row::kLargest, Row::kMaximum, Row::kZero};

std::vector<float> make_row(Row kind, uint32_t n, Random& random) {
  std::vector<float> x(n);
  for (float& v : x) {
    v = random.normal();
    if (kind == Row::kWide) {
      do {
        v = random.any_bits();
      } while (std::abs(v) >= 0x1p100F);
    }
    if (kind == Row::kTies) v = static_cast<float>(random.integer(-65278, 65278)) * 0.5F;
    if (kind == Row::kTiny) v = static_cast<float>(random.integer(-1000, 1000)) * 0x1p-91F;
    if (kind == Row::kEdge) v = static_cast<float>(random.integer(-1030, 1030)) * 0x1p-90F;
    if (kind == Row::kLargest) v *= 0x1p103F;
    if (kind == Row::kMaximum) v = static_cast<float>(random.integer(-32640, 32640)) - 0.5F;
    if (kind == Row::kZero) v = random.integer(0, 1) == 0 ? 0.0F : -0.0F;
  }
  const auto place = static_cast<size_t>(random.integer(0, n - 1));
  if (kind == Row::kOutlier) x[place] *= 30000.0F;
  if (kind == Row::kMaximum) x[place] = random.integer(0, 1) == 0 ? 32639.5F : 32639.498F;
  if (kind == Row::kInfinite) x[place] = std::bit_cast<float>(arithmetic::kInfinityBits);
  return x;
}

// Rows of all kinds, one after the other.
std::vector<float> make_rows(uint32_t n, Random& random) {
  std::vector<float> rows;
  for (const Row kind : kRows) {
    const std::vector<float> row = make_row(kind, n, random);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}
constexpr uint32_t kKinds = std::size(kRows);

constexpr uint32_t kLengths[] = {1, 5, 32, 100, 384, 1000, 4096};

class Steps : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_REQUIRE_DEVICE();
    failed_ = must(test_device()->make_buffer(4));
  }
  bool failed() {
    std::vector<uint32_t> word(1);
    must(test_device()->read(failed_, word));
    const std::vector<uint32_t> zero(1);
    must(test_device()->write(failed_, 0, std::as_bytes(std::span<const uint32_t>(zero))));
    return word[0] != 0;
  }
  Buffer upload(const std::vector<float>& values) {
    return must(test_device()->make_buffer(values));
  }

  // Runs commands, and compares with arithmetic::quantize of what the step's rows should be.
  void expect_quantized(const Commands& commands, const ActivationBuffers& out,
                        const std::vector<float>& rows) {
    const uint32_t n = out.columns;
    std::vector<int16_t> values(rows.size());
    std::vector<int32_t> exponents(out.tokens);
    for (uint32_t t = 0; t < out.tokens; ++t) {
      int exponent = 0;
      ASSERT_TRUE(arithmetic::quantize(std::span(rows).subspan(size_t{t} * n, n),
                                       std::span(values).subspan(size_t{t} * n, n), exponent));
      exponents[t] = exponent;
    }
    const gpu::Activations expected = gpu::to_gpu(values, exponents, out.padded);
    ASSERT_EQ(run_and_read<int32_t>(commands, out.exponents, out.tokens), exponents) << n;
    std::vector<uint8_t> planes(expected.planes.size());
    must(test_device()->read(out.planes, planes));
    ASSERT_EQ(planes, expected.planes) << n;
    std::vector<uint32_t> sums(expected.group_sums.size());
    must(test_device()->read(out.group_sums, sums));
    ASSERT_EQ(sums, expected.group_sums) << n;
  }

  Buffer failed_;
};

TEST_F(Steps, Quantize) {
  Random random(1);
  for (const uint32_t n : kLengths) {
    const std::vector<float> rows = make_rows(n, random);
    ActivationBuffers out = must(test_kernels().make_activations(kKinds, n));
    Commands commands;
    const Buffer in = upload(rows);
    must(test_kernels().quantize(in, out, failed_, commands));
    expect_quantized(commands, out, rows);
    EXPECT_FALSE(failed());
  }
}

TEST_F(Steps, WhatIsNotFiniteIsReported) {
  Random random(2);
  const Buffer in = upload(make_row(Row::kInfinite, 77, random));
  const Buffer nan = upload({1.0F, std::bit_cast<float>(0x7fc00001U), 2.0F});
  const Buffer ones = upload(std::vector<float>(77, 1.0F));
  const arithmetic::NormConstants constants(77, 1e-6);
  ActivationBuffers out = must(test_kernels().make_activations(1, 77));
  ActivationBuffers three = must(test_kernels().make_activations(1, 3));
  HeadBuffers heads = must(test_kernels().make_heads(1, 1, 76));
  const auto fails = [&](auto&& step) {
    Commands commands;
    must(step(commands));
    must(test_device()->submit(commands));
    return failed();
  };
  Kernels& k = test_kernels();
  EXPECT_TRUE(fails([&](Commands& c) { return k.quantize(in, out, failed_, c); }));
  EXPECT_TRUE(fails([&](Commands& c) { return k.quantize(nan, three, failed_, c); }));
  EXPECT_TRUE(fails([&](Commands& c) { return k.gated_silu(ones, in, out, failed_, c); }));
  EXPECT_TRUE(fails([&](Commands& c) { return k.gated_silu(in, ones, out, failed_, c); }));
  EXPECT_TRUE(fails([&](Commands& c) { return k.rms_norm(in, ones, constants, out, failed_, c); }));
  EXPECT_FALSE(
      fails([&](Commands& c) { return k.rms_norm(ones, ones, constants, out, failed_, c); }));
  // Finite, but larger than a norm takes.
  const Buffer huge = upload(std::vector<float>(77, 0x1p107F));
  EXPECT_TRUE(
      fails([&](Commands& c) { return k.rms_norm(huge, ones, constants, out, failed_, c); }));
}

TEST_F(Steps, RmsNorm) {
  Random random(3);
  for (const uint32_t n : kLengths) {
    for (const double epsilon : {0.0, 1e-6, 1e-5, 0x1p-30}) {
      const std::vector<float> rows = make_rows(n, random);
      std::vector<float> weight(n);
      for (float& w : weight) w = random.normal();
      const arithmetic::NormConstants constants(n, epsilon);
      std::vector<float> expected(rows.size());
      std::vector<int16_t> scratch(n);
      for (size_t t = 0; t < kKinds; ++t) {
        ASSERT_TRUE(arithmetic::rms_norm(std::span(rows).subspan(t * n, n), weight, constants,
                                         scratch, std::span(expected).subspan(t * n, n)));
      }
      const Buffer in = upload(rows);
      const Buffer weights = upload(weight);
      const Buffer floats = must(test_device()->make_buffer(rows.size() * 4));
      Commands commands;
      must(test_kernels().rms_norm(in, weights, constants, kKinds, floats, failed_, commands));
      ASSERT_EQ(run_and_read(commands, floats, rows.size()), cpu::bits(expected)) << n;
      ActivationBuffers out = must(test_kernels().make_activations(kKinds, n));
      commands.clear();
      must(test_kernels().rms_norm(in, weights, constants, out, failed_, commands));
      expect_quantized(commands, out, expected);
      EXPECT_FALSE(failed());
    }
  }
}

TEST_F(Steps, GatedSilu) {
  Random random(4);
  for (const uint32_t n : kLengths) {
    std::vector<float> gate = make_rows(n, random);
    std::vector<float> up = make_rows(n, random);
    std::vector<float> expected(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      // Within what a layer sees: products that overflow are another test's.
      if (std::abs(gate[i]) > 0x1p60F) gate[i] *= 0x1p-80F;
      if (std::abs(up[i]) > 0x1p60F) up[i] *= 0x1p-80F;
      if (i % 7 == 3)
        gate[i] =
            std::bit_cast<float>(static_cast<uint32_t>(random.integer(0x41000000, 0x42ffffff))) *
            (i % 2 == 0 ? 1.0F : -1.0F);
      expected[i] = arithmetic::gated_silu(gate[i], up[i]);
    }
    ActivationBuffers out = must(test_kernels().make_activations(kKinds, n));
    Commands commands;
    const Buffer g = upload(gate);
    const Buffer u = upload(up);
    must(test_kernels().gated_silu(g, u, out, failed_, commands));
    expect_quantized(commands, out, expected);
    EXPECT_FALSE(failed());
  }
}

// Sixteen bits hide which way the last bit of a number went: here the numbers themselves.
TEST_F(Steps, GatedSiluRoundsEveryProduct) {
  std::string source = "const kThreads = 64u;\n";
  for (const char* file :
       {"integer", "real", "quantization", "exponential", "row", "to_floats", "gated_silu"}) {
    source += shader(file);
  }
  const Pipeline pipeline = must(test_device()->make_pipeline("gated_silu", source));
  constexpr uint32_t kCount = 1 << 16;
  Random random(8);
  std::vector<float> gate(kCount);
  std::vector<float> up(kCount);
  std::vector<float> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    gate[i] = random.normal() * (i % 4 == 0 ? 20.0F : 3.0F);
    up[i] = random.normal();
    expected[i] = arithmetic::gated_silu(gate[i], up[i]);
  }
  const Buffer g = upload(gate);
  const Buffer u = upload(up);
  const Buffer out = must(test_device()->make_buffer(kCount * 4));
  const Dispatch dispatch{
      &pipeline, {256, kCount / 256, 0, 0, 0}, {&g, &u, nullptr, nullptr, &out}, 256};
  ASSERT_EQ(run_and_read({dispatch}, out, kCount), cpu::bits(expected));
}

// Heads as planes of bytes.
std::vector<uint8_t> planes_of(const std::vector<int16_t>& values, uint32_t head_dim) {
  const uint32_t padded = (head_dim + 15) / 16 * 16;
  const size_t rows = values.size() / head_dim;
  return gpu::to_gpu(values, std::vector<int32_t>(rows), padded).planes;
}

TEST_F(Steps, Heads) {
  Random random(5);
  for (const uint32_t head_dim : {2U, 16U, 48U, 80U, 128U, 512U}) {
    for (const bool rotary : {true, false}) {
      // A kind of row a token, three heads each.
      constexpr uint32_t kHeads = 3;
      std::vector<float> rows;
      for (const Row kind : kRows) {
        for (uint32_t h = 0; h < kHeads; ++h) {
          const std::vector<float> row = make_row(kind, head_dim, random);
          rows.insert(rows.end(), row.begin(), row.end());
        }
      }
      std::vector<arithmetic::Rotation> rotations(size_t{kKinds} * head_dim / 2);
      for (arithmetic::Rotation& r : rotations) {
        r = arithmetic::rotation(static_cast<uint64_t>(random.integer(INT64_MIN, INT64_MAX)));
      }
      rotations[0] = {32768, 0};  // nothing
      std::vector<int16_t> values(rows.size());
      std::vector<int32_t> exponents;
      std::vector<int32_t> scratch(head_dim);
      for (size_t head = 0; head < size_t{kKinds} * kHeads; ++head) {
        const std::span<int16_t> x = std::span(values).subspan(head * head_dim, head_dim);
        int exponent = 0;
        ASSERT_TRUE(
            arithmetic::quantize(std::span(rows).subspan(head * head_dim, head_dim), x, exponent));
        if (rotary) {
          exponent = arithmetic::rotate(
              x, exponent, std::span(rotations).subspan(head / kHeads * head_dim / 2, head_dim / 2),
              scratch);
        }
        exponents.push_back(exponent);
      }
      HeadBuffers out = must(test_kernels().make_heads(kKinds, kHeads, head_dim));
      const Buffer in = upload(rows);
      const Buffer table = must(test_device()->make_buffer(rotations));
      Commands commands;
      must(test_kernels().heads(in, rotary ? &table : nullptr, out, failed_, commands));
      ASSERT_EQ(run_and_read<int32_t>(commands, out.exponents, exponents.size()), exponents)
          << head_dim;
      const std::vector<uint8_t> expected = planes_of(values, head_dim);
      std::vector<uint8_t> planes(expected.size());
      must(test_device()->read(out.planes, planes));
      ASSERT_EQ(planes, expected) << head_dim;
      EXPECT_FALSE(failed());
    }
  }
}

}  // namespace
}  // namespace tandem::kernels::webgpu
