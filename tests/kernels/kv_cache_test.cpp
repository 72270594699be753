// The KV cache: what windows let go, what they keep, and what 8 bits hold.
#include "kernels/cpu/kv_cache.h"

#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "arithmetic/quantize.h"
#include "support.h"

namespace tandem::kernels::cpu {
namespace {

constexpr uint32_t kDim = 32;
constexpr uint32_t kHeads = 2;
constexpr uint32_t kWindow = 100;

// Keys and values that tell their position.
void fill(CpuKvCache& cache, uint32_t layer, uint32_t from, uint32_t to) {
  for (uint32_t p = from; p < to; ++p) {
    Random random(p);
    std::vector<int16_t> key(kDim);
    std::vector<int16_t> value(kDim);
    for (int16_t& v : key) v = random.activation(Fill::kRandom, 0);
    for (int16_t& v : value) v = random.activation(Fill::kRandom, 0);
    for (uint32_t head = 0; head < kHeads; ++head) {
      cache.store_key(layer, head, p, key.data(), -14);
      cache.store_value(layer, head, p, value.data(), -13);
    }
  }
}

std::vector<uint32_t> attend(const CpuKvCache& cache, uint32_t layer, uint32_t position,
                             uint32_t window) {
  std::vector<int16_t> query(kDim, 1500);
  const int32_t exponent = -13;
  AttentionTask task;
  task.queries = query.data();
  task.exponents = &exponent;
  task.query_stride = task.out_stride = kDim;
  task.exponent_stride = 1;
  task.position = position;
  task.window = window;
  task.constant = 10000.0F;
  AttentionScratch scratch;
  std::vector<float> out(kDim);
  EXPECT_TRUE(
      fast_sets().front()->attention(cache.view(layer, 1), task, nullptr, scratch, out.data()));
  return bits(out);
}

// With a context that is known the memory is taken ahead, in runs, and no more in the end.
class KvCacheContext : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Contexts, KvCacheContext, testing::Values(0, 4000, 5000, 100000));

TEST_P(KvCacheContext, WindowsLetGoOfWhatNoPassSeesAndKeepTheRest) {
  constexpr uint32_t kLength = 5000;
  constexpr uint32_t kPass = 100;
  CpuKvCache all(2, kHeads, kDim);
  CpuKvCache cache(2, kHeads, kDim, {16, {kWindow, 0}, GetParam()});
  uint64_t most = 0;
  ASSERT_TRUE(all.reserve(kLength).ok());
  for (uint32_t begin = 0; begin < kLength; begin += kPass) {
    if (begin > kWindowMargin) cache.release(begin - kWindowMargin);
    ASSERT_TRUE(cache.reserve(begin + kPass).ok());
    for (uint32_t layer = 0; layer < 2; ++layer) {
      fill(all, layer, begin, begin + kPass);
      fill(cache, layer, begin, begin + kPass);
    }
    // The pass's own tokens, and those of one after a rollback to the least length.
    for (const uint32_t position : {begin, begin + kPass - 1, cache.floor()}) {
      ASSERT_EQ(attend(cache, 0, position, kWindow), attend(all, 0, position, kWindow));
      ASSERT_EQ(attend(cache, 1, position, 0), attend(all, 1, position, 0));
    }
    most = std::max(most, cache.bytes());
  }
  EXPECT_EQ(cache.floor(), kLength - kPass - kWindowMargin);
  const uint32_t context = std::max(kLength, GetParam());
  const uint64_t told = CpuKvCache::layer_bytes(kHeads, kDim, 16, kWindow, context) +
                        CpuKvCache::layer_bytes(kHeads, kDim, 16, 0, context);
  EXPECT_LE(most, told);
  if (context == kLength) {
    EXPECT_GE(most, told / 10 * 8);
  }
  EXPECT_LT(CpuKvCache::layer_bytes(kHeads, kDim, 16, kWindow, kLength),
            CpuKvCache::layer_bytes(kHeads, kDim, 16, 0, kLength) / 2);
}

TEST(KvCache, ClearedItBeginsAnewInTheSameMemory) {
  CpuKvCache cache(1, kHeads, kDim, {16, {kWindow}});
  cache.release(0);
  for (uint32_t begin = 0; begin < 3000; begin += 500) {
    if (begin > kWindowMargin) cache.release(begin - kWindowMargin);
    ASSERT_TRUE(cache.reserve(begin + 500).ok());
    fill(cache, 0, begin, begin + 500);
  }
  const uint64_t held = cache.bytes();
  EXPECT_GT(cache.floor(), 0U);
  cache.clear();
  EXPECT_EQ(cache.floor(), 0U);
  CpuKvCache fresh(1, kHeads, kDim);
  ASSERT_TRUE(cache.reserve(600).ok());
  ASSERT_TRUE(fresh.reserve(600).ok());
  EXPECT_EQ(cache.bytes(), held);
  fill(cache, 0, 0, 600);
  fill(fresh, 0, 0, 600);
  for (const uint32_t position : {0U, 99U, 599U}) {
    EXPECT_EQ(attend(cache, 0, position, kWindow), attend(fresh, 0, position, kWindow));
  }
}

// Room that was made after positions had been let go, as a state that is read from a file has it.
TEST(KvCache, HoldsOnlyWhatIsSeenWhenItBeginsLate) {
  CpuKvCache cache(1, kHeads, kDim, {16, {kWindow}});
  cache.release(10000);
  ASSERT_TRUE(cache.reserve(10001).ok());
  EXPECT_LE(cache.bytes(), 2 * CpuKvCache::chunk_bytes(kHeads, kDim));
  EXPECT_EQ(cache.first_seen(0, 10000), 10000 - kWindow + 1);
  CpuKvCache all(1, kHeads, kDim);
  ASSERT_TRUE(all.reserve(10001).ok());
  fill(cache, 0, cache.first_seen(0, 10000), 10001);
  fill(all, 0, 9000, 10001);
  EXPECT_EQ(attend(cache, 0, 10000, kWindow), attend(all, 0, 10000, kWindow));
}

TEST(KvCache, GrowsWithoutCopying) {
  CpuKvCache cache(1, kHeads, kDim);
  ASSERT_TRUE(cache.reserve(1).ok());
  const int16_t* first = cache.view(0, 0).keys[0];
  ASSERT_TRUE(cache.reserve(100000).ok());
  EXPECT_EQ(cache.view(0, 0).keys[0], first);
  EXPECT_EQ(cache.bytes(), CpuKvCache::layer_bytes(kHeads, kDim, 16, 0, 100000));
}

// What a cache holds after each length from 1 on, in passes of one token.
TEST(KvCache, NeverHoldsMoreThanItsContextWasSaidToTake) {
  const uint64_t chunk = CpuKvCache::chunk_bytes(kHeads, kDim, 8);
  for (const uint32_t context : {1U, 256U, 257U, 1000U, 2500U, 4096U, 9000U}) {
    for (const uint32_t window : {0U, 1U, kWindow, 700U}) {
      CpuKvCache cache(2, kHeads, kDim, {8, {window, 0}, context});
      const auto said = [&](uint32_t positions) {
        return CpuKvCache::layer_bytes(kHeads, kDim, 8, window, positions) +
               CpuKvCache::layer_bytes(kHeads, kDim, 8, 0, positions);
      };
      for (uint32_t length = 1; length <= context + 600; ++length) {
        if (length > kWindowMargin) cache.release(length - 1 - kWindowMargin);
        ASSERT_TRUE(cache.reserve(length).ok());
        ASSERT_LE(cache.bytes(), said(std::max(length, context))) << length << " of " << context;
        // Twice as much as is used at most, and a run a layer.
        ASSERT_LE(cache.bytes(), 2 * said(length));
        ASSERT_LE(cache.bytes(), said(length) + 2 * CpuKvCache::kLongestRun * chunk);
        if (window == 0) {
          ASSERT_GE(cache.bytes(), said(length));
        }
      }
    }
  }
}

// Where a head's keys of a chunk, or values, begin in bytes.
size_t address(std::span<const int16_t* const> chunks, size_t chunk) {
  return reinterpret_cast<size_t>(chunks[chunk]);
}

// Chunks of each stream that lies together.
std::vector<size_t> streams(std::span<const int16_t* const> chunks, size_t bytes) {
  std::vector<size_t> lengths;
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (c != 0 && address(chunks, c) == address(chunks, c - 1) + bytes) {
      ++lengths.back();
    } else {
      lengths.push_back(1);
    }
  }
  return lengths;
}

TEST(KvCache, WhatIsReadTogetherLiesTogether) {
  for (const uint32_t bits : {16U, 8U}) {
    CpuKvCache cache(2, kHeads, kDim, {bits, {}, 50 * kChunk});
    for (uint32_t length = 1; length <= 50 * kChunk; length += 100) {
      ASSERT_TRUE(cache.reserve(length).ok());
    }
    const size_t bytes = size_t{kChunk} * kDim * bits / 8;
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        const CacheView view = cache.view(layer, head);
        for (const auto chunks : {view.keys, view.values}) {
          const std::vector<size_t> wanted = {1, 1, 2, 4, 8, 16, 16, 2};
          EXPECT_EQ(streams(chunks, bytes), wanted);
        }
        EXPECT_EQ(streams(view.key_exponents, 2 * kChunk), streams(view.keys, bytes));
        EXPECT_EQ(streams(view.value_exponents, 2 * kChunk), streams(view.keys, bytes));
      }
    }
    // Room for many positions at once needs no context.
    CpuKvCache whole(1, kHeads, kDim, {bits, {}});
    ASSERT_TRUE(whole.reserve(40 * kChunk).ok());
    EXPECT_EQ(streams(whole.view(0, 1).values, bytes), (std::vector<size_t>{16, 16, 8}));
  }
}

// No two chunks share a byte, whatever was let go and used again.
TEST(KvCache, EveryNumberHasAPlaceOfItsOwn) {
  for (const uint32_t bits : {16U, 8U}) {
    CpuKvCache cache(2, kHeads, kDim, {bits, {kWindow, 0}, 8000});
    for (uint32_t begin = 0; begin < 6000; begin += 300) {
      if (begin > kWindowMargin) cache.release(begin - kWindowMargin);
      ASSERT_TRUE(cache.reserve(begin + 300).ok());
    }
    std::vector<std::pair<size_t, size_t>> parts;
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        const CacheView view = cache.view(layer, head);
        const auto add = [&](const void* part, size_t size) {
          if (part != nullptr) parts.emplace_back(reinterpret_cast<size_t>(part), size);
        };
        for (size_t c = 0; c < view.keys.size(); ++c) {
          add(view.keys[c], size_t{kChunk} * kDim * bits / 8);
          add(view.values[c], size_t{kChunk} * kDim * bits / 8);
          add(view.key_exponents[c], 2 * kChunk);
          add(view.value_exponents[c], 2 * kChunk);
          if (bits == 16) continue;
          add(view.key_multipliers[c], size_t{kChunk} * view.groups());
          add(view.value_multipliers[c], size_t{kChunk} * view.groups());
        }
      }
    }
    std::sort(parts.begin(), parts.end());
    uint64_t all = parts.front().second;
    for (size_t i = 1; i < parts.size(); ++i) {
      ASSERT_GE(parts[i].first, parts[i - 1].first + parts[i - 1].second);
      all += parts[i].second;
    }
    EXPECT_LE(all, cache.bytes());
  }
}

// The same numbers come out of any layout, and go into any other.
TEST(KvCache, WhatIsExportedDependsOnNoRuns) {
  constexpr uint32_t kLength = 5000;
  for (const uint32_t bits : {16U, 8U}) {
    CpuKvCache grown(1, kHeads, kDim, {bits, {}, 6000});
    CpuKvCache whole(1, kHeads, kDim, {bits, {}});
    for (uint32_t begin = 0; begin < kLength; begin += 250) {
      ASSERT_TRUE(grown.reserve(begin + 250).ok());
      fill(grown, 0, begin, begin + 250);
    }
    std::vector<int16_t> out(size_t{kLength} * grown.position_values());
    grown.export_positions(0, 0, kLength, out);
    ASSERT_TRUE(whole.reserve(kLength).ok());
    ASSERT_TRUE(whole.import_positions(0, 0, kLength, out).ok());
    std::vector<int16_t> again(out.size());
    whole.export_positions(0, 0, kLength, again);
    EXPECT_EQ(again, out);
    for (const uint32_t position : {255U, 256U, 1023U, 1024U, kLength - 1}) {
      EXPECT_EQ(attend(whole, 0, position, 0), attend(grown, 0, position, 0));
    }
    const uint64_t held = grown.bytes();
    grown.clear();
    ASSERT_TRUE(grown.reserve(kLength).ok());
    EXPECT_EQ(grown.bytes(), held);
  }
}

// Emulators of other processors keep no limit of addresses.
#if defined(__linux__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
// Where there is no room for a run, what is needed may still fit.
TEST(KvCache, TakesOnlyWhatItNeedsWhereMemoryIsShort) {
  const auto grow = [] {
    constexpr uint32_t kManyHeads = 64;
    const uint64_t chunk = CpuKvCache::chunk_bytes(kManyHeads, 128);  // 8.5 MB
    CpuKvCache cache(1, kManyHeads, 128, {16, {}, 100000});
    if (!cache.reserve(16 * kChunk).ok() || cache.bytes() != 16 * chunk) return 1;
    std::ifstream statm("/proc/self/statm");
    uint64_t pages = 0;
    statm >> pages;
    rlimit limit = {};
    limit.rlim_cur = limit.rlim_max =
        pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + 4 * chunk;
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    if (!cache.reserve(17 * kChunk).ok() || cache.bytes() != 17 * chunk) return 3;
    return cache.reserve(40 * kChunk).ok() || cache.bytes() != 17 * chunk ? 4 : 0;
  };
  EXPECT_EXIT(_exit(grow()), testing::ExitedWithCode(0), "");
}
#endif

TEST(KvCache, EightBitsTakeHalfAndAreExportedAsTheyCount) {
  CpuKvCache cache(1, kHeads, kDim, {8, {}});
  ASSERT_TRUE(cache.reserve(300).ok());
  EXPECT_LT(cache.bytes(), 2 * CpuKvCache::chunk_bytes(kHeads, kDim) * 6 / 10);
  fill(cache, 0, 0, 300);
  std::vector<int16_t> out(size_t{300} * cache.position_values());
  cache.export_positions(0, 0, 300, out);
  Random random(299);
  std::vector<int16_t> key(kDim);
  for (int16_t& v : key) v = random.activation(Fill::kRandom, 0);
  std::vector<int8_t> q(kDim);
  const int32_t m = arithmetic::narrow(key, q);
  const int16_t* last = out.data() + size_t{299} * cache.position_values();
  EXPECT_EQ(last[0], -14);
  for (size_t c = 0; c < kDim; ++c) EXPECT_EQ(last[2 + c], q[c] * m);
  // What 8 bits stand for becomes the same again; anything else is refused.
  CpuKvCache other(1, kHeads, kDim, {8, {}});
  ASSERT_TRUE(other.reserve(300).ok());
  ASSERT_TRUE(other.import_positions(0, 0, 300, out).ok());
  std::vector<int16_t> again(out.size());
  other.export_positions(0, 0, 300, again);
  EXPECT_EQ(again, out);
  EXPECT_EQ(attend(other, 0, 299, 0), attend(cache, 0, 299, 0));
  out[2] = static_cast<int16_t>(out[2] ^ 1);
  EXPECT_FALSE(other.import_positions(0, 0, 300, out).ok());
}

TEST(KvCache, NarrowTakesTheLeastMultiplierAndKeepsWithinHalfOfIt) {
  Random random(8);
  for (int round = 0; round < 5000; ++round) {
    const int32_t limit = round == 0 ? arithmetic::kMaxActivation
                          : random.integer(0, 1) == 0
                              ? random.integer(0, arithmetic::kMaxActivation)
                              : 1 << random.integer(0, 14);
    std::vector<int16_t> values(random.integer(1, arithmetic::kNarrowGroup));
    for (int16_t& v : values) v = static_cast<int16_t>(random.integer(-limit, limit));
    if (round % 2 == 0) values[0] = static_cast<int16_t>(round % 4 == 0 ? limit : -limit);
    std::vector<int8_t> q(values.size());
    const int32_t m = arithmetic::narrow(values, q);
    ASSERT_GE(m, 1);
    ASSERT_LE(m, 256);
    bool less_would_do = m > 1;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_GE(q[i], -127);
      ASSERT_LE(2 * std::abs(q[i] * m - values[i]), m);
      const int half = (m - 1) / 2;
      const double closest = std::floor((values[i] + half) / static_cast<double>(m - 1));
      less_would_do = less_would_do && std::fabs(closest) <= 127;
    }
    ASSERT_FALSE(less_would_do) << m;
  }
}

}  // namespace
}  // namespace tandem::kernels::cpu
