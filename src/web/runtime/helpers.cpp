// How a worker of the host becomes a helper of the module's thread pools. The engine's thread calls
// tandem_helper_memory; the worker instantiates the same module over the same memory without
// running its constructors, sets its stack pointer to the block's address plus
// tandem_helper_stack_bytes and its thread-local memory there, then calls join, says that it is
// ready, and calls run, which does not return.
#include <cstdint>
#include <cstdlib>

#include "base/thread_pool.h"

#define TANDEM_EXPORT(name) extern "C" __attribute__((export_name(#name))) auto name

namespace {

constexpr uint32_t kStackBytes = 256U << 10;
constexpr uint32_t kAlignment = 64;

}  // namespace

TANDEM_EXPORT(tandem_helper_stack_bytes)()->uint32_t {
  return kStackBytes;
}

/// A block for one helper's stack and thread-local memory; null if memory is exhausted.
TANDEM_EXPORT(tandem_helper_memory)()->void* {
  const auto local = static_cast<uint32_t>(__builtin_wasm_tls_size());
  return std::aligned_alloc(kAlignment,
                            kStackBytes + (local + kAlignment) / kAlignment * kAlignment);
}

TANDEM_EXPORT(tandem_helper_join)()->uint32_t {
  return tandem::helper_join();
}

TANDEM_EXPORT(tandem_helper_run)(uint32_t place)->void {
  tandem::helper_run(place);
}
