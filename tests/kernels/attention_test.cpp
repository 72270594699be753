// Attention: every set's bits are those of the reference, for every window, shape and extreme.
#include "arithmetic/attention.h"
#include "kernels/cpu/kv_cache.h"
#include "support.h"

namespace tandem::kernels::cpu {
namespace {

enum class Keys {
  kRandom,
  kEqual,      // all scores the same: a tie of maxima
  kSink,       // one position far above a long flat tail
  kHighest,    // sums at their largest
  kExponents,  // another exponent at each position
  kVanishing,  // scores so far apart that most weights are 0
};
constexpr Keys kKinds[] = {Keys::kRandom,  Keys::kEqual,     Keys::kSink,
                           Keys::kHighest, Keys::kExponents, Keys::kVanishing};

struct Case {
  uint32_t head_dim = 64;
  uint32_t positions = 1;
  uint32_t tokens = 1;
  uint32_t heads = 1;
  uint32_t window = 0;
  Keys keys = Keys::kRandom;
  std::vector<int32_t> sinks = {};  // a head each, or none
  uint32_t bits = 16;               // of keys and values
};

std::unique_ptr<CpuKvCache> make_cache(const Case& c, Random& random) {
  auto cache = std::make_unique<CpuKvCache>(1, 2, c.head_dim, CacheOptions{c.bits, {}});
  // Room for more than is filled, and rubbish past the end as after a rollback.
  const uint32_t filled = c.positions + 9;
  EXPECT_TRUE(cache->reserve(filled).ok());
  std::vector<int16_t> key(c.head_dim);
  std::vector<int16_t> value(c.head_dim);
  for (uint32_t position = 0; position < filled; ++position) {
    const bool sink = position == 0;
    for (size_t i = 0; i < c.head_dim; ++i) {
      const Fill fill = c.keys == Keys::kHighest ? Fill::kHighest : Fill::kRandom;
      key[i] = random.activation(fill, i);
      value[i] = random.activation(fill, i);
      if (c.keys == Keys::kEqual) key[i] = 100;
      if (c.keys == Keys::kSink) key[i] = sink ? 20000 : static_cast<int16_t>(i % 3);
      if (c.keys == Keys::kSink && sink) value[i] = 0;
    }
    int32_t key_exponent = -14;
    int32_t value_exponent = -14;
    if (c.keys == Keys::kExponents) {
      key_exponent = static_cast<int32_t>(random.integer(-30, -10));
      value_exponent = static_cast<int32_t>(random.integer(-94, 114));
    }
    if (c.keys == Keys::kVanishing) key_exponent = static_cast<int32_t>(random.integer(-14, 20));
    for (uint32_t head = 0; head < 2; ++head) {
      cache->store_key(0, head, position, key.data(), key_exponent);
      cache->store_value(0, head, position, value.data(), value_exponent);
    }
  }
  return cache;
}

void expect_equal_attention(const Case& c, Random& random) {
  const std::unique_ptr<CpuKvCache> cache = make_cache(c, random);
  const uint32_t padded = (c.head_dim + 15) / 16 * 16;
  const uint32_t all_heads = c.heads + 1;  // strides wider than the task
  std::vector<int16_t> queries(size_t{c.tokens} * all_heads * padded);
  std::vector<int32_t> exponents(size_t{c.tokens} * all_heads);
  for (size_t row = 0; row < exponents.size(); ++row) {
    exponents[row] = c.keys == Keys::kHighest     ? 114
                     : c.keys == Keys::kVanishing ? 0
                                                  : static_cast<int32_t>(random.integer(-16, -12));
    for (size_t i = 0; i < c.head_dim; ++i) {
      const Fill fill = c.keys == Keys::kHighest ? (row % 2 == 0 ? Fill::kHighest : Fill::kLowest)
                                                 : Fill::kRandom;
      queries[row * padded + i] = random.activation(fill, i);
      if (c.keys == Keys::kSink) queries[row * padded + i] = 3000;
    }
  }
  AttentionTask task;
  task.queries = queries.data();
  task.exponents = exponents.data();
  task.query_stride = size_t{all_heads} * padded;
  task.exponent_stride = all_heads;
  task.out_stride = size_t{all_heads} * c.head_dim;
  task.tokens = c.tokens;
  task.heads = c.heads;
  task.position = c.positions - c.tokens;
  task.window = c.window;
  task.constant = arithmetic::score_constant(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  ASSERT_TRUE(c.sinks.empty() || c.sinks.size() == c.heads);
  task.sinks = c.sinks.empty() ? nullptr : c.sinks.data();
  const auto run = [&](const CpuKernels& set, ThreadPool* pool) {
    AttentionScratch scratch;
    std::vector<float> out(c.tokens * task.out_stride, 4.0F);
    EXPECT_TRUE(set.attention(cache->view(0, 1), task, pool, scratch, out.data()));
    return bits(out);
  };
  const std::vector<uint32_t> expected = run(scalar_kernels(), nullptr);
  for (const CpuKernels* set : fast_sets()) {
    // Positions in one range, and in up to twelve.
    static ThreadPool threads(3);
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &threads}) {
      ASSERT_EQ(run(*set, pool), expected)
          << set->isa << (pool == nullptr ? "" : " split") << " head_dim " << c.head_dim
          << " positions " << c.positions << " tokens " << c.tokens << " heads " << c.heads
          << " window " << c.window << " keys " << static_cast<int>(c.keys);
    }
  }
}

TEST(Attention, EqualsTheReferenceForEveryNumberOfPositions) {
  Random random(1);
  for (uint32_t positions = 1; positions <= 700; positions += positions < 70 ? 1 : 37) {
    for (const Keys keys : kKinds) {
      expect_equal_attention({.positions = positions, .keys = keys}, random);
    }
  }
}

TEST(Attention, EqualsTheReferenceForEveryHeadDim) {
  Random random(2);
  for (const uint32_t head_dim : {8U, 16U, 24U, 32U, 64U, 80U, 96U, 128U, 256U, 512U}) {
    for (const Keys keys : kKinds) {
      expect_equal_attention({.head_dim = head_dim, .positions = 75, .keys = keys}, random);
    }
  }
}

TEST(Attention, EqualsTheReferenceForWindowsThatStartWithinABlock) {
  Random random(3);
  for (const uint32_t window : {1U, 2U, 15U, 16U, 17U, 33U, 100U, 300U}) {
    for (uint32_t positions = 280; positions < 297; positions += 3) {
      for (const Keys keys : kKinds) {
        expect_equal_attention({.positions = positions, .window = window, .keys = keys}, random);
      }
    }
  }
}

TEST(Attention, EqualsTheReferenceForHeadsAndTokensTogether) {
  Random random(4);
  for (const uint32_t tokens : {1U, 2U, 3U, 7U, 16U}) {
    for (const uint32_t heads : {1U, 2U, 3U, 4U, 5U, 8U}) {
      for (const uint32_t window : {0U, 20U}) {
        for (const Keys keys : {Keys::kRandom, Keys::kExponents}) {
          expect_equal_attention({.head_dim = 32,
                                  .positions = tokens + 250,
                                  .tokens = tokens,
                                  .heads = heads,
                                  .window = window,
                                  .keys = keys},
                                 random);
        }
      }
    }
  }
}

// From a sink that no position notices to one that takes all mass, whatever the values' exponents.
TEST(Attention, EqualsTheReferenceWithSinks) {
  Random random(5);
  constexpr int32_t kMost = 1 << 30;
  const std::vector<int32_t> depths = {-kMost,   -(50 << 16), 0,         1,          12345,
                                       41 << 16, 42 << 16,    100 << 16, 3000 << 16, kMost};
  for (const Keys keys : kKinds) {
    for (const uint32_t window : {0U, 20U}) {
      for (const uint32_t tokens : {1U, 3U}) {
        for (size_t i = 0; i < depths.size(); i += 2) {
          expect_equal_attention({.positions = 150,
                                  .tokens = tokens,
                                  .heads = 3,
                                  .window = window,
                                  .keys = keys,
                                  .sinks = {depths[i], depths[i + 1], arithmetic::kNoSink}},
                                 random);
        }
      }
    }
  }
}

TEST(Attention, EqualsTheReferenceWithKeysAndValuesOf8Bits) {
  Random random(6);
  for (const Keys keys : kKinds) {
    for (const uint32_t head_dim : {8U, 40U, 128U, 256U, 512U}) {
      for (const uint32_t positions : {1U, 17U, 300U}) {
        expect_equal_attention({.head_dim = head_dim,
                                .positions = positions,
                                .heads = 3,
                                .keys = keys,
                                .sinks = {0, arithmetic::kNoSink, 3 << 16},
                                .bits = 8},
                               random);
      }
    }
    expect_equal_attention(
        {.positions = 300, .tokens = 5, .heads = 2, .window = 100, .keys = keys, .bits = 8},
        random);
  }
}

// What a row of attention keeps does not depend on other rows: at the longest context, with a sink
// in the cache and a learned one, split over threads or not.
TEST(Attention, EqualsTheReferenceAtTheLongestContext) {
  Random random(7);
  for (const Keys keys : {Keys::kSink, Keys::kExponents}) {
    for (const uint32_t bits : {16U, 8U}) {
      expect_equal_attention({.head_dim = 16,
                              .positions = arithmetic::kMaxPositions - 9,
                              .tokens = 2,
                              .heads = 2,
                              .keys = keys,
                              .sinks = {arithmetic::kNoSink, 2 << 16},
                              .bits = bits},
                             random);
    }
  }
}

}  // namespace
}  // namespace tandem::kernels::cpu
