// Waiting for an atomic number to change, on every kind of thread that Tandem has.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace tandem {

#if defined(__wasm__)
/// The host's wait, a function of its own on purpose: the baseline compiler of Node 20's V8 (11.3)
/// loses the register of the address across the instruction, so that nothing after it may use what
/// is in that register.
void wait32(int* address, int value);
#endif

/// Sleeps while `number` is `value`; may wake early. A notification between the caller's last look
/// and the sleep is not lost.
inline void wait_while(std::atomic<uint32_t>& number, uint32_t value) {
#if defined(__wasm__)
  // libc++ without std::thread has no sleeping wait.
  wait32(reinterpret_cast<int*>(&number), static_cast<int>(value));
#elif defined(__linux__)
  // Not wait(): libstdc++ yields the core some times first, which gives it to whatever else is
  // there, also of the idle policy, for a whole slice: two threads became slower than one.
  syscall(SYS_futex, &number, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  number.wait(value, std::memory_order_acquire);
#endif
}

#if defined(__wasm__)
/// Wakes one sleeper.
inline void wake_one(std::atomic<uint32_t>& number) {
  __builtin_wasm_memory_atomic_notify(reinterpret_cast<int*>(&number), 1);
}
#endif

/// Wakes all sleepers.
inline void wake_all(std::atomic<uint32_t>& number) {
#if defined(__wasm__)
  __builtin_wasm_memory_atomic_notify(reinterpret_cast<int*>(&number), ~0U);
#elif defined(__linux__)
  syscall(SYS_futex, &number, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  number.notify_all();
#endif
}

/// A number that changes often and is seldom slept on: whoever changes it looks whether somebody
/// sleeps before asking the system. Threads may do anything with it at any time.
class WaitedNumber {
 public:
  [[nodiscard]] uint32_t get() const { return number_.load(std::memory_order_acquire); }
  /// Both give the number as it was.
  uint32_t add(uint32_t value) { return number_.fetch_add(value); }
  uint32_t clear(uint32_t bits) { return number_.fetch_and(~bits); }
  uint32_t set(uint32_t bits) { return number_.fetch_or(bits); }
  /// Sleeps while the number is `value`; may wake early.
  void wait_while(uint32_t value) {
    // Sequentially consistent with the changes: either the sleeper is seen, or it sees the change.
    sleepers_.fetch_add(1);
    tandem::wait_while(number_, value);
    sleepers_.fetch_sub(1);
  }
  /// After a change.
  void wake() {
    if (sleepers_.load() != 0) wake_all(number_);
  }

 private:
  std::atomic<uint32_t> number_{0};
  std::atomic<uint32_t> sleepers_{0};
};

/// Tells the processor that this thread spins.
inline void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace tandem
