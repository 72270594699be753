#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>

namespace tandem {
namespace {

TEST(ThreadPool, EveryElementIsDoneExactlyOnceWhateverThreadsAndGrain) {
  for (uint32_t threads = 1; threads <= 7; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const uint64_t count : {0, 1, 2, 7, 100, 1001}) {
      for (const uint64_t grain : {1, 2, 3, 64, 5000}) {
        std::vector<std::atomic<int>> done(count);
        pool.split(count, grain, [&](uint64_t begin, uint64_t end) {
          EXPECT_LT(begin, end);
          EXPECT_LE(end, count);
          for (uint64_t i = begin; i < end; ++i) done[i].fetch_add(1);
        });
        for (const std::atomic<int>& n : done) ASSERT_EQ(n.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, WhatABodyWroteIsSeenAfterTheLoop) {
  ThreadPool pool(4);
  std::vector<uint64_t> values(64);
  for (uint64_t round = 1; round <= 3000; ++round) {
    pool.split(values.size(), 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) values[i] += i;
    });
  }
  for (uint64_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 3000 * i);
}

// Loops that start while helpers spin, as they go to sleep, and after they slept.
TEST(ThreadPool, NoWakeUpIsLostAtAnyGapBetweenLoops) {
  ThreadPool pool(3);
  std::atomic<uint64_t> total{0};
  uint64_t expected = 0;
  for (int gap = 0; gap < 400; ++gap) {
    pool.split(9, 1, [&](uint64_t begin, uint64_t end) { total.fetch_add(end - begin); });
    expected += 9;
    ASSERT_EQ(total.load(), expected);
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(gap % 100);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
}

TEST(ThreadPool, PoolsOfMoreThreadsThanCoresFinish) {
  ThreadPool pool(64);
  std::atomic<uint64_t> total{0};
  for (int round = 0; round < 50; ++round) {
    pool.split(1000, 3, [&](uint64_t begin, uint64_t end) { total.fetch_add(end - begin); });
  }
  EXPECT_EQ(total.load(), 50000U);
}

// Threads of this process.
std::set<pid_t> threads() {
  std::set<pid_t> ids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ids.insert(std::stoi(task.path().filename().string()));
  }
  return ids;
}

TEST(ThreadPool, AHelperDoesNotWorkOnTheCallersCoreAndLeavesIt) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const std::set<pid_t> before = threads();
  ThreadPool pool(2);
  pid_t helper = 0;
  for (const pid_t id : threads()) {
    if (!before.contains(id)) helper = id;
  }
  ASSERT_NE(helper, 0);
  const int core = sched_getcpu();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  ASSERT_EQ(sched_setaffinity(helper, sizeof(one), &one), 0);
  const pid_t caller = gettid();
  std::atomic<uint64_t> beside{0};  // pieces of the helper on the caller's core
  std::atomic<uint64_t> apart{0};
  const auto loop = [&] {
    pool.split(500, 1, [&](uint64_t, uint64_t) {
      if (gettid() != caller) (sched_getcpu() == core ? beside : apart).fetch_add(1);
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
      while (std::chrono::steady_clock::now() < end) {
      }
    });
  };
  // Loops much longer than what the system gives one thread before the next.
  for (int i = 0; i < 5; ++i) loop();
  EXPECT_EQ(beside.load() + apart.load(), 0U);
  ASSERT_EQ(sched_setaffinity(helper, sizeof(all), &all), 0);
  if (CPU_COUNT(&all) > 1) {
    for (int i = 0; i < 200 && apart.load() == 0; ++i) loop();
    EXPECT_GT(apart.load(), 0U);
  }
  EXPECT_EQ(beside.load(), 0U);
  EXPECT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(ThreadPool, IdleHelpersSleep) {
  ThreadPool pool(3);
  pool.split(100, 1, [](uint64_t, uint64_t) {});
  const auto processor_time = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto before = processor_time();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  // Two spinning helpers would have used 400 ms or more.
  EXPECT_LT(processor_time() - before, std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace tandem
