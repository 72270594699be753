// A fixed number of threads that split loops: fork, work, join, a few microseconds in all.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

#if !defined(__wasm__)
#include <thread>
#endif

#include "base/wait.h"

namespace tandem {

/// `threads` threads in all, the caller among them: a pool of one starts none. Fewer if the system
/// grants no more. One caller at a time; idle helpers spin for 50 microseconds, then sleep. A
/// helper that finds itself on the caller's core leaves the loop to the caller and, where the
/// system has affinities (Linux), moves to another core.
///
/// In WebAssembly the helpers are workers that the host started beforehand and that entered the
/// module by helper_join() and helper_run(); a pool takes those that are free.
class ThreadPool {  // NOLINT(clang-analyzer-optin.performance.Padding): a line a counter
 public:
  explicit ThreadPool(uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] uint32_t threads() const { return static_cast<uint32_t>(helpers_.size()) + 1; }

  /// Calls body(begin, end) for pieces of [0, count) of at most `grain` until all are done; returns
  /// then. Each thread has a range of its own, the same one for the same loop, and goes through it
  /// in order, so that what it reads is one stream; one that is done takes pieces of the others'.
  /// `body` must not throw.
  template <typename Body>
  void split(uint64_t count, uint64_t grain, Body&& body) {
    if (count == 0) return;
    if (helpers_.empty() || count <= grain) {
      body(uint64_t{0}, count);
      return;
    }
    using Callable = std::remove_reference_t<Body>;
    run(
        count, grain < 1 ? 1 : grain,
        [](void* context, uint64_t begin, uint64_t end) {
          (*static_cast<Callable*>(context))(begin, end);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
#if defined(__wasm__)
  friend void helper_run(uint32_t place);
#endif
  using Piece = void (*)(void* context, uint64_t begin, uint64_t end);
  void run(uint64_t count, uint64_t grain, Piece piece, void* context);
  void work(uint32_t place);
  void helper();

#if defined(__wasm__)
  std::vector<uint32_t> helpers_;  // places of the workers that this pool has taken
#else
  std::vector<std::thread> helpers_;
#endif
  // The loop under way. Written by run() while nobody is inside, read by helpers that are.
  uint64_t count_ = 0;
  uint64_t grain_ = 1;
  uint64_t pieces_ = 0;
  Piece piece_ = nullptr;
  void* context_ = nullptr;
  int core_ = -1;  // that the caller was on; -1: the system does not say
  struct alignas(64) Range {
    std::atomic<uint64_t> taken{0};  ///< pieces of it; more than it has once it is done
  };
  std::vector<Range> ranges_;        ///< one a thread, the caller's first
  std::atomic<uint32_t> places_{1};  ///< given to threads
  alignas(64) WaitedNumber generation_;
  // Helpers inside a loop, and whether they may still enter it. A helper that the system has not
  // given a core comes to a closed gate and goes back to waiting; the caller never waits for it.
  static constexpr uint32_t kOpen = 1U << 31;
  alignas(64) WaitedNumber gate_;
  std::atomic<bool> stop_{false};
};

#if defined(__wasm__)
/// A worker offers itself to the module's pools; its place, or ~0 if there are 255 already.
uint32_t helper_join();
/// Works for the pools that take the place. Never returns: the host ends the worker.
void helper_run(uint32_t place);
#endif

}  // namespace tandem
