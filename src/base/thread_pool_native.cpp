// A pool's helpers where the system has threads.
#include <system_error>

#include "base/thread_pool.h"

namespace tandem {

ThreadPool::ThreadPool(uint32_t threads) : ranges_(threads < 1 ? 1 : threads) {
  try {
    for (uint32_t i = 1; i < threads; ++i) helpers_.emplace_back([this] { helper(); });
  } catch (const std::system_error&) {
    // The system grants no more threads: those that started do the work.
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.add(1);
  generation_.wake();
  for (std::thread& thread : helpers_) thread.join();
}

}  // namespace tandem
