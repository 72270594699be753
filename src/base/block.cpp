#include "base/block.h"

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tandem {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

std::shared_ptr<void> allocate_small(size_t bytes) {
  void* memory = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, bytes);
  return {memory, [](void* p) { ::operator delete (p, std::align_val_t{kAlignment}); }};
}

}  // namespace

std::shared_ptr<void> allocate_zeroed(size_t bytes) {
#if defined(__linux__)
  if (bytes >= kHugePage) {
    // Huge pages only lie at their own boundaries, and mmap knows no alignment: more is mapped, and
    // what stands out is given back.
    const size_t mapped = bytes + kHugePage;
    void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto* begin = static_cast<uint8_t*>(memory);
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    constexpr size_t kPage = 65536;  // a multiple of every page size in use
    const size_t kept = (bytes + kPage - 1) / kPage * kPage;
    if (before != 0) ::munmap(begin, before);
    begin += before;
    if (mapped - before > kept) ::munmap(begin + kept, mapped - before - kept);
    ::madvise(begin, kept, MADV_HUGEPAGE);  // advice: without it the bytes are the same
    return {begin, [kept](void* p) { ::munmap(p, kept); }};
  }
#endif
  return allocate_small(bytes);
}

}  // namespace tandem
