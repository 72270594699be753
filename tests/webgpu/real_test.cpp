// The integers of real.wgsl against the processor's binary32: every operation, every class of
// number.
#include <array>

#include "kernels/webgpu/shaders.h"
#include "webgpu/support.h"

namespace tandem::kernels::webgpu {
namespace {

using cpu::Random;

// a: first operands, b: second; out: one of four operations of each pair.
constexpr const char* kShader = R"(
struct Parameters { count: u32, operation: u32 }
@group(0) @binding(0) var<uniform> parameters: Parameters;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> b: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let i = id.x;
  if (i >= parameters.count) { return; }
  switch (parameters.operation) {
    case 0u: { out[i] = real_multiply(a[i], b[i]); }
    case 1u: { out[i] = real_add(a[i], b[i]); }
    case 2u: { out[i] = real_from_i64(vec2u(a[i], b[i])); }
    default: { out[i] = bitcast<u32>(real_to_integer(a[i], 0i)); }
  }
}
)";

// Bits of all classes: ordinary ones, subnormals, edges, and pairs close to each other.
uint32_t operand(Random& random, uint32_t near) {
  constexpr std::array<uint32_t, 12> kEdges = {0,          1,          0x007fffff, 0x00800000,
                                               0x00800001, 0x3f800000, 0x3f7fffff, 0x7f7fffff,
                                               0x7f800000, 0x4b000000, 0x4b7fffff, 0x34000000};
  const auto sign = static_cast<uint32_t>(random.integer(0, 1)) << 31U;
  switch (random.integer(0, 7)) {
    case 0:
      return kEdges[static_cast<size_t>(random.integer(0, kEdges.size() - 1))] | sign;
    case 1:
      return static_cast<uint32_t>(random.integer(0, 0x007fffff)) | sign;  // subnormal
    case 2:
      return (near ^ static_cast<uint32_t>(random.integer(0, 7))) ^ sign;  // cancels
    case 3:                                                                // few bits: ties
      return (static_cast<uint32_t>(random.integer(0, 0xfff)) << 12U) + 0x3f000000U + sign;
    default:
      return static_cast<uint32_t>(random.integer(0, INT64_C(0xffffffff)));
  }
}

std::vector<uint32_t> run(uint32_t operation, const std::vector<uint32_t>& a,
                          const std::vector<uint32_t>& b) {
  static const Pipeline pipeline = must(test_device()->make_pipeline(
      "real_test", std::string(shader("integer")) + std::string(shader("real")) + kShader));
  const Buffer x = must(test_device()->make_buffer(a));
  const Buffer y = must(test_device()->make_buffer(b));
  const Buffer out = must(test_device()->make_buffer(a.size() * 4));
  const auto count = static_cast<uint32_t>(a.size());
  return run_and_read({{&pipeline, {count, operation}, {&x, &y, &out}, (count + 63) / 64}}, out,
                      a.size());
}

constexpr size_t kCount = size_t{1} << 20;

class Real : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_REQUIRE_DEVICE();
    Random random(7);
    for (size_t i = 0; i < kCount; ++i) {
      a_.push_back(operand(random, 0x3f800000));
      b_.push_back(operand(random, a_.back()));
    }
  }
  // What is not a number may have any bits of its kind.
  static void expect_same(const std::vector<uint32_t>& got, const std::vector<float>& expected,
                          const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
    for (size_t i = 0; i < got.size(); ++i) {
      const auto bits = std::bit_cast<uint32_t>(expected[i]);
      const bool both_nan = std::isnan(expected[i]) && (got[i] & 0x7fffffffU) > 0x7f800000U;
      ASSERT_TRUE(got[i] == bits || both_nan)
          << std::hex << a[i] << " and " << b[i] << ": " << got[i] << ", not " << bits;
    }
  }
  std::vector<uint32_t> a_;
  std::vector<uint32_t> b_;
};

TEST_F(Real, MultipliesAsTheProcessorDoes) {
  std::vector<float> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    expected[i] = std::bit_cast<float>(a_[i]) * std::bit_cast<float>(b_[i]);
  }
  expect_same(run(0, a_, b_), expected, a_, b_);
}

TEST_F(Real, AddsAsTheProcessorDoes) {
  std::vector<float> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    expected[i] = std::bit_cast<float>(a_[i]) + std::bit_cast<float>(b_[i]);
  }
  expect_same(run(1, a_, b_), expected, a_, b_);
}

TEST_F(Real, RoundsIntegersOf64BitsOnce) {
  // Of every length, near the ties of each.
  Random random(8);
  std::vector<uint32_t> low(kCount);
  std::vector<uint32_t> high(kCount);
  std::vector<float> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    int64_t n = random.integer(INT64_MIN, INT64_MAX) >> random.integer(0, 63);
    if (i % 4 == 0) {
      const auto length = static_cast<unsigned>(random.integer(24, 61));
      const int64_t tie = (2 * random.integer(1 << 23, (1 << 24) - 1) + 1) << (length - 24);
      n = (tie + random.integer(-1, 1)) * (i % 8 == 0 ? 1 : -1);
    }
    low[i] = static_cast<uint32_t>(n);
    high[i] = static_cast<uint32_t>(static_cast<uint64_t>(n) >> 32U);
    expected[i] = static_cast<float>(n);
  }
  expect_same(run(2, low, high), expected, low, high);
}

TEST_F(Real, RoundsToIntegersWithTiesToEven) {
  std::vector<uint32_t> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    if (i % 2 == 0) {  // halves
      a_[i] = std::bit_cast<uint32_t>(
          static_cast<float>(static_cast<int32_t>(i) - static_cast<int32_t>(kCount / 2)) * 0.5F);
    }
    if ((a_[i] & 0x7fffffffU) >= 0x4f000000U) a_[i] = 0x4e800000;  // 2^31 and more
    expected[i] = static_cast<uint32_t>(arithmetic::round_to_int(std::bit_cast<float>(a_[i])));
  }
  ASSERT_EQ(run(3, a_, b_), expected);
}

}  // namespace
}  // namespace tandem::kernels::webgpu
