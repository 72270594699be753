// Threads of a module: its pools really use the workers that joined, and what is locked holds.
// Started with three helpers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "base/mutex.h"
#include "base/thread_pool.h"

namespace tandem {
namespace {

constexpr uint32_t kHelpers = 3;

// A different address on every thread.
const void* own_mark() {
  thread_local char mark = 0;
  return &mark;
}

// Loops until as many threads as `pool` has took part; how many did.
size_t threads_seen(ThreadPool& pool) {
  Mutex mutex;
  std::set<const void*> seen;
  for (int round = 0; round < 100000 && seen.size() < pool.threads(); ++round) {
    pool.split(64, 1, [&](uint64_t, uint64_t) {
      const std::lock_guard lock(mutex);
      seen.insert(own_mark());
    });
  }
  return seen.size();
}

TEST(Threads, APoolUsesTheHelpersThatJoined) {
  for (uint32_t threads = 1; threads <= kHelpers + 1; ++threads) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    EXPECT_EQ(threads_seen(pool), threads);
  }
}

TEST(Threads, APoolIsSmallerIfHelpersAreMissing) {
  ThreadPool pool(10);
  EXPECT_EQ(pool.threads(), kHelpers + 1);
  ThreadPool none(2);
  EXPECT_EQ(none.threads(), 1U);
  uint64_t sum = 0;
  none.split(100, 1, [&](uint64_t begin, uint64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 100U);
}

TEST(Threads, HelpersServeOnePoolAfterAnother) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool first(2);
    ThreadPool second(3);
    ASSERT_EQ(first.threads(), 2U);
    ASSERT_EQ(second.threads(), 3U);
    std::atomic<uint64_t> sum{0};
    first.split(100, 3, [&](uint64_t begin, uint64_t end) { sum += end - begin; });
    second.split(100, 3, [&](uint64_t begin, uint64_t end) { sum += end - begin; });
    ASSERT_EQ(sum.load(), 200U);
  }
}

TEST(Threads, WhatABodyWroteIsSeenAfterTheLoop) {
  ThreadPool pool(kHelpers + 1);
  std::vector<uint64_t> values(64);
  for (uint64_t round = 1; round <= 3000; ++round) {
    pool.split(values.size(), 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) values[i] += i;
    });
  }
  for (uint64_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 3000 * i);
}

TEST(Threads, AMutexLetsOneIn) {
  ThreadPool pool(kHelpers + 1);
  Mutex mutex;
  uint64_t count = 0;
  pool.split(40000, 1, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const std::lock_guard lock(mutex);
      count = count + 1;
    }
  });
  EXPECT_EQ(count, 40000U);
}

// The C library's allocator is not made for threads: without a lock this breaks its lists.
TEST(Threads, MemoryIsAllocatedAndFreedByAll) {
  ThreadPool pool(kHelpers + 1);
  std::atomic<int> wrong{0};
  pool.split(4000, 1, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      std::vector<std::unique_ptr<char[]>> pieces;
      for (size_t size = 1; size < 3000; size = size * 3 + 1) {
        pieces.push_back(std::make_unique<char[]>(size));
        std::memset(pieces.back().get(), static_cast<int>(i & 127), size);
      }
      size_t size = 1;
      for (const auto& piece : pieces) {
        for (size_t k = 0; k < size; ++k) wrong += piece[k] != static_cast<char>(i & 127) ? 1 : 0;
        size = size * 3 + 1;
      }
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace tandem
