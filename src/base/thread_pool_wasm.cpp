// A pool's helpers in WebAssembly: workers of the host that wait in the module until a pool takes
// them, and again when it is gone.
#include "base/thread_pool.h"
#include "base/wait.h"

namespace tandem {
namespace {

enum : uint32_t { kNobody, kFree, kTaken };

struct Place {
  std::atomic<uint32_t> state{kNobody};
  ThreadPool* pool = nullptr;  // written by the pool before kTaken, read by the worker after it
};

constexpr uint32_t kPlaces = 255;
Place g_places[kPlaces];

}  // namespace

__attribute__((noinline)) void wait32(int* address, int value) {
  __builtin_wasm_memory_atomic_wait32(address, value, -1);
}

uint32_t helper_join() {
  for (uint32_t i = 0; i < kPlaces; ++i) {
    uint32_t nobody = kNobody;
    if (g_places[i].state.compare_exchange_strong(nobody, kFree)) return i;
  }
  return ~0U;
}

void helper_run(uint32_t place) {
  if (place >= kPlaces) return;
  Place& own = g_places[place];
  while (true) {
    while (own.state.load(std::memory_order_acquire) != kTaken) wait_while(own.state, kFree);
    own.pool->helper();
    own.state.store(kFree, std::memory_order_release);
    wake_all(own.state);
  }
}

ThreadPool::ThreadPool(uint32_t threads) : ranges_(threads < 1 ? 1 : threads) {
  for (uint32_t i = 0; i < kPlaces && helpers_.size() + 1 < threads; ++i) {
    // Pools are made by one thread, the module's engine: nobody else turns a free place taken.
    if (g_places[i].state.load(std::memory_order_acquire) != kFree) continue;
    g_places[i].pool = this;
    g_places[i].state.store(kTaken, std::memory_order_release);
    wake_all(g_places[i].state);
    helpers_.push_back(i);
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.add(1);
  generation_.wake();
  for (const uint32_t place : helpers_) {
    std::atomic<uint32_t>& state = g_places[place].state;
    while (state.load(std::memory_order_acquire) == kTaken) wait_while(state, kTaken);
  }
}

}  // namespace tandem
