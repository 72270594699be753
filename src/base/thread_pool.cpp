#include "base/thread_pool.h"

#if defined(__linux__)
#include <sched.h>
#endif

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

#if defined(__linux__)
int core() {
  return sched_getcpu();
}

// Keeps the calling thread off the caller's core. Seen in traces of two cores of which another
// process keeps one: a thread that is woken takes its waker's core, and does so again the next
// time.
class Distance {
 public:
  void keep_from(int core) {
    cpu_set_t now;
    if (core >= CPU_SETSIZE || sched_getaffinity(0, sizeof(now), &now) != 0) return;
    // Somebody else has said since where this thread may run.
    if (!CPU_EQUAL(&now, &own_)) allowed_ = now;
    own_ = allowed_;
    CPU_CLR(core, &own_);
    if (CPU_COUNT(&own_) == 0 || sched_setaffinity(0, sizeof(own_), &own_) != 0) own_ = now;
  }

 private:
  cpu_set_t allowed_{};
  cpu_set_t own_{};
};
#else
int core() {
  return -1;
}

class Distance {
 public:
  void keep_from(int) {}
};
#endif

}  // namespace

void ThreadPool::work(uint32_t place) {
  const auto threads = static_cast<uint32_t>(ranges_.size());
  for (uint32_t i = 0; i < threads; ++i) {
    const uint32_t range = (place + i) % threads;
    const uint64_t first = pieces_ * range / threads;
    const uint64_t size = pieces_ * (range + 1) / threads - first;
    std::atomic<uint64_t>& taken = ranges_[range].taken;
    // Looked at first: many threads that count up a range that is done hold up those that work.
    while (taken.load(std::memory_order_relaxed) < size) {
      const uint64_t piece = taken.fetch_add(1, std::memory_order_relaxed);
      if (piece >= size) break;
      const uint64_t begin = (first + piece) * grain_;
      const uint64_t end = begin + grain_ < count_ ? begin + grain_ : count_;
      piece_(context_, begin, end);
    }
  }
}

void ThreadPool::run(uint64_t count, uint64_t grain, Piece piece, void* context) {
  count_ = count;
  grain_ = grain;
  piece_ = piece;
  context_ = context;
  pieces_ = (count - 1) / grain + 1;
  for (Range& range : ranges_) range.taken.store(0, std::memory_order_relaxed);
  core_ = core();
  gate_.set(kOpen);
  generation_.add(1);
  generation_.wake();
  work(0);
  // Every piece is taken: whoever has not come yet is not waited for.
  gate_.clear(kOpen);
  if (spin([this] { return gate_.get() == 0; })) return;
  for (uint32_t inside = gate_.get(); inside != 0; inside = gate_.get()) gate_.wait_while(inside);
}

void ThreadPool::helper() {
  const uint32_t place = places_.fetch_add(1);
  uint32_t seen = 0;
  Distance distance;
  while (true) {
    const auto moved = [this, seen] { return generation_.get() != seen; };
    if (!spin(moved)) generation_.wait_while(seen);
    if (!moved()) continue;
    seen = generation_.get();
    if (stop_.load()) return;
    int shared = -1;
    if ((gate_.add(1) & kOpen) != 0) {
      if (core_ >= 0 && core_ == core()) {
        shared = core_;
      } else {
        work(place);
      }
    }
    if (gate_.add(~0U) == 1) gate_.wake();
    if (shared >= 0) distance.keep_from(shared);
  }
}

}  // namespace tandem
