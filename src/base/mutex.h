// A mutual exclusion lock for std::lock_guard, on every kind of thread that Tandem has.
#pragma once

#include <mutex>

#if defined(__wasm__)
#include "base/wait.h"
#endif

namespace tandem {

#if defined(__wasm__)

/// libc++ without std::thread has no std::mutex. Not recursive.
class Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() {
    uint32_t free = kFree;
    if (state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire)) return;
    // From here on the holder must wake somebody, whoever it is.
    while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
      wait_while(state_, kWaitedFor);
    }
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kWaitedFor) wake_one(state_);
  }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kWaitedFor = 2;
  std::atomic<uint32_t> state_{kFree};
};

#else

using Mutex = std::mutex;

#endif

}  // namespace tandem
