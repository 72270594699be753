#include "base/thread_pool.h"

#include <chrono>

#include "base/wait.h"

namespace tandem {
namespace {

// Long enough to bridge the gap between two loops of a pass, short enough not to burn a core that
// another process needs.
constexpr auto kSpin = std::chrono::microseconds(50);

// Spins until `done()` for at most kSpin; true if it came true.
template <typename Done>
bool spin(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      spin_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

void ThreadPool::work() {
  while (true) {
    const uint64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    const uint64_t end = begin + grain_ < count_ ? begin + grain_ : count_;
    piece_(context_, begin, end);
  }
}

void ThreadPool::run(uint64_t count, uint64_t grain, Piece piece, void* context) {
  count_ = count;
  grain_ = grain;
  piece_ = piece;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  gate_.fetch_or(kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  wake_all(generation_);
  work();
  // Every piece is taken: whoever has not come yet is not waited for.
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto done = [this] { return gate_.load(std::memory_order_acquire) == 0; };
  if (spin(done)) return;
  for (uint32_t inside = gate_.load(std::memory_order_acquire); inside != 0;
       inside = gate_.load(std::memory_order_acquire)) {
    wait_while(gate_, inside);
  }
}

void ThreadPool::helper() {
  uint32_t seen = 0;
  while (true) {
    const auto moved = [this, seen] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!spin(moved)) wait_while(generation_, seen);
    if (!moved()) continue;
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if ((gate_.fetch_add(1, std::memory_order_acq_rel) & kOpen) != 0) work();
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) wake_one(gate_);
  }
}

}  // namespace tandem
