// Attention on WebGPU: scores, softmax weights and weighted values with the bits of the reference.
#include "arithmetic/attention.h"

#include "webgpu/support.h"

namespace tandem::kernels::webgpu {
namespace {

using cpu::Fill;
using cpu::Random;

enum class Keys {
  kRandom,
  kEqual,      // all scores the same
  kSink,       // one position far above a long flat tail
  kHighest,    // sums and scores at their largest
  kExponents,  // another exponent at each position
  kVanishing,  // scores so far apart that most weights are 0
};
constexpr Keys kKinds[] = {Keys::kRandom,  Keys::kEqual,     Keys::kSink,
                           Keys::kHighest, Keys::kExponents, Keys::kVanishing};

struct Head {
  std::vector<std::vector<int16_t>> values;
  std::vector<int32_t> exponents;

  [[nodiscard]] arithmetic::Vector16 at(size_t i) const { return {values[i], exponents[i]}; }
  [[nodiscard]] HeadBuffers upload(uint32_t head_dim) const {
    std::vector<int16_t> all;
    for (const auto& row : values) all.insert(all.end(), row.begin(), row.end());
    const gpu::Activations x = gpu::to_gpu(all, exponents, (head_dim + 15) / 16 * 16);
    HeadBuffers buffers;
    buffers.tokens = static_cast<uint32_t>(values.size());
    buffers.heads = 1;
    buffers.head_dim = head_dim;
    buffers.planes = must(test_device()->make_buffer(x.planes));
    buffers.exponents = must(test_device()->make_buffer(x.exponents));
    return buffers;
  }
};

struct Case {
  uint32_t head_dim = 64;
  uint32_t positions = 1;
  uint32_t rows = 1;
  uint32_t first = 0;
  Keys keys = Keys::kRandom;
  std::vector<int32_t> sinks = {};  // a row each, or none
};

void expect_equal_attention(const Case& c, Random& random) {
  const auto vector = [&](Fill fill) {
    std::vector<int16_t> v(c.head_dim);
    for (size_t i = 0; i < v.size(); ++i) v[i] = random.activation(fill, i);
    return v;
  };
  Head keys;
  Head values;
  for (uint32_t p = 0; p < c.positions; ++p) {
    const Fill fill = c.keys == Keys::kHighest ? Fill::kHighest : Fill::kRandom;
    std::vector<int16_t> key = vector(fill);
    std::vector<int16_t> value = vector(fill);
    if (c.keys == Keys::kEqual) key.assign(c.head_dim, 100);
    if (c.keys == Keys::kSink) key.assign(c.head_dim, p == 0 ? 20000 : static_cast<int16_t>(p % 3));
    if (c.keys == Keys::kSink && p == 0) value.assign(c.head_dim, 0);
    int32_t key_exponent = -14;
    int32_t value_exponent = -14;
    if (c.keys == Keys::kExponents) {
      key_exponent = static_cast<int32_t>(random.integer(-30, -10));
      value_exponent = static_cast<int32_t>(random.integer(-94, 114));
    }
    if (c.keys == Keys::kVanishing) key_exponent = static_cast<int32_t>(random.integer(-14, 20));
    keys.values.push_back(std::move(key));
    keys.exponents.push_back(key_exponent);
    values.values.push_back(std::move(value));
    values.exponents.push_back(value_exponent);
  }
  Head queries;
  for (uint32_t r = 0; r < c.rows; ++r) {
    queries.values.push_back(c.keys == Keys::kHighest
                                 ? vector(r % 2 == 0 ? Fill::kHighest : Fill::kLowest)
                                 : vector(Fill::kRandom));
    if (c.keys == Keys::kSink) queries.values.back().assign(c.head_dim, 3000);
    queries.exponents.push_back(c.keys == Keys::kHighest     ? 114
                                : c.keys == Keys::kVanishing ? 0
                                                             : -16 + static_cast<int32_t>(r % 5));
  }
  const AttentionRange range = {
      c.first, arithmetic::score_constant(1.0 / std::sqrt(static_cast<double>(c.head_dim)))};

  std::vector<int32_t> scores;
  std::vector<float> expected(size_t{c.rows} * c.head_dim);
  std::vector<arithmetic::Vector16> key_spans;
  std::vector<arithmetic::Vector16> value_spans;
  for (uint32_t p = 0; p < c.positions; ++p) {
    key_spans.push_back(keys.at(p));
    value_spans.push_back(values.at(p));
  }
  for (uint32_t r = 0; r < c.rows; ++r) {
    for (uint32_t p = 0; p < c.positions; ++p) {
      scores.push_back(arithmetic::score(queries.at(r), key_spans[p], range.constant));
    }
    arithmetic::attention({queries.at(r), key_spans, value_spans, c.first, range.constant,
                           c.sinks.empty() ? arithmetic::kNoSink : c.sinks[r]},
                          std::span(expected).subspan(size_t{r} * c.head_dim, c.head_dim));
  }

  Kernels& kernels = test_kernels();
  const HeadBuffers q = queries.upload(c.head_dim);
  const HeadBuffers k = keys.upload(c.head_dim);
  const HeadBuffers v = values.upload(c.head_dim);
  AttentionBuffers between = must(kernels.make_attention(c.rows, c.positions, range));
  const Buffer out = must(test_device()->make_buffer(expected.size() * 4));
  Commands commands;
  std::optional<Buffer> sinks;
  if (!c.sinks.empty()) sinks = must(test_device()->make_buffer(c.sinks));
  must(kernels.attention(q, k, v, range, sinks.has_value() ? &*sinks : nullptr, between, out,
                         commands));
  const std::vector<uint32_t> got = run_and_read(commands, out, expected.size());
  std::vector<int32_t> got_scores(scores.size());
  must(test_device()->read(between.scores, got_scores));
  ASSERT_EQ(got_scores, scores);
  ASSERT_EQ(got, cpu::bits(expected))
      << "head_dim " << c.head_dim << " positions " << c.positions << " first " << c.first
      << " keys " << static_cast<int>(c.keys);
}

class Attention : public testing::Test {
 protected:
  void SetUp() override { TANDEM_REQUIRE_DEVICE(); }
};

TEST_F(Attention, EqualsTheReferenceForManyNumbersOfPositions) {
  Random random(1);
  for (const uint32_t positions : {1U, 2U, 15U, 16U, 17U, 100U, 127U, 300U, 2100U}) {
    for (const Keys keys : kKinds) {
      expect_equal_attention({.positions = positions, .rows = 1 + positions % 3, .keys = keys},
                             random);
    }
  }
}

TEST_F(Attention, EqualsTheReferenceForEveryHeadDim) {
  Random random(2);
  for (const uint32_t head_dim : {2U, 8U, 24U, 80U, 128U, 512U}) {
    for (const Keys keys : kKinds) {
      expect_equal_attention({.head_dim = head_dim, .positions = 75, .keys = keys}, random);
    }
  }
}

TEST_F(Attention, EqualsTheReferenceWithSinks) {
  Random random(4);
  constexpr int32_t kMost = 1 << 30;
  for (const Keys keys : kKinds) {
    expect_equal_attention({.positions = 75,
                            .rows = 9,
                            .keys = keys,
                            .sinks = {-kMost, -(50 << 16), 0, 12345, 41 << 16, 42 << 16, 100 << 16,
                                      3000 << 16, kMost}},
                           random);
  }
}

// A sliding window begins anywhere within a block.
TEST_F(Attention, BlocksLieAtMultiplesOf16) {
  Random random(3);
  for (const uint32_t first : {1U, 15U, 16U, 1000U, 262000U}) {
    for (const uint32_t positions : {1U, 14U, 40U}) {
      expect_equal_attention({.positions = positions, .first = first, .keys = Keys::kExponents},
                             random);
    }
  }
}

}  // namespace
}  // namespace tandem::kernels::webgpu
