// Waiting for an atomic number to change, on every kind of thread that Tandem has.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
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
#else
  number.wait(value, std::memory_order_acquire);
#endif
}

/// Wakes one sleeper, or all.
inline void wake_one(std::atomic<uint32_t>& number) {
#if defined(__wasm__)
  __builtin_wasm_memory_atomic_notify(reinterpret_cast<int*>(&number), 1);
#else
  number.notify_one();
#endif
}
inline void wake_all(std::atomic<uint32_t>& number) {
#if defined(__wasm__)
  __builtin_wasm_memory_atomic_notify(reinterpret_cast<int*>(&number), ~0U);
#else
  number.notify_all();
#endif
}

/// Tells the processor that this thread spins.
inline void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace tandem
