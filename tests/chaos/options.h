// What the command line asks of the chaos tests, and how they run many answers at once.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

namespace tandem::chaos {

struct ChaosOptions {
  uint32_t faults = 14;      ///< over workers with addresses
  uint32_t room_faults = 6;  ///< over rooms
  uint64_t seed = 1;
  uint32_t rooms = 5;  ///< at once
};
ChaosOptions& chaos_options();

/// Runs answers 0 to `answers` - 1 in `rooms` rooms at once, each taking the next one when it is
/// done. `open(room, seed)` gives what runs an answer in a room; it is called in the room's thread.
template <typename Open>
void in_rooms(size_t rooms, size_t answers, std::mt19937_64& random, Open&& open) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < rooms; ++i) {
    threads.emplace_back([&, i, seed = random()] {
      const auto answer = open(i, seed);
      for (size_t at = next++; at < answers; at = next++) {
        answer(at);
        if (testing::Test::HasFatalFailure()) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tandem::chaos
