// What Debian's libraries for wasm32-wasi leave out or leave unlocked, because they were built for
// one thread. The linker sends every use of malloc and its relatives here (--wrap).
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/mutex.h"

namespace {

// The C library's allocator has no lock of its own.
tandem::Mutex g_memory;

}  // namespace

extern "C" {

// The names are the linker's. NOLINTBEGIN(bugprone-reserved-identifier)
void* __real_malloc(size_t bytes);
void __real_free(void* memory);
void* __real_calloc(size_t count, size_t bytes);
void* __real_realloc(void* memory, size_t bytes);
void* __real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void** memory, size_t alignment, size_t bytes);

void* __wrap_malloc(size_t bytes) {
  const std::lock_guard lock(g_memory);
  return __real_malloc(bytes);
}
void __wrap_free(void* memory) {
  const std::lock_guard lock(g_memory);
  __real_free(memory);
}
void* __wrap_calloc(size_t count, size_t bytes) {
  const std::lock_guard lock(g_memory);
  return __real_calloc(count, bytes);
}
void* __wrap_realloc(void* memory, size_t bytes) {
  const std::lock_guard lock(g_memory);
  return __real_realloc(memory, bytes);
}
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  const std::lock_guard lock(g_memory);
  return __real_aligned_alloc(alignment, bytes);
}
int __wrap_posix_memalign(void** memory, size_t alignment, size_t bytes) {
  const std::lock_guard lock(g_memory);
  return __real_posix_memalign(memory, alignment, bytes);
}

// Destructors of thread_local objects: no thread of a module ever ends by itself.
int __cxa_thread_atexit(void (*)(void*), void*, void*) {
  return 0;
}

// Debian's compiler-rt was built with stack protectors.
uintptr_t __stack_chk_guard = 0x7f5ea1c3;
[[noreturn]] void __stack_chk_fail() {
  __builtin_trap();
}
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"
