#include "base/block.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tandem {
namespace {

constexpr size_t kAlignment = 64;

#if defined(__linux__)
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 65536;  // a multiple of every page size in use
// What small blocks share: a matrix of 3 MB of its own would lie in one huge page and 256 small
// ones. Only what is touched takes memory.
constexpr size_t kChunk = size_t{64} << 20;

// Zeroed pages at a boundary of huge pages.
std::shared_ptr<uint8_t> map_pages(size_t bytes) {
  // Huge pages only lie at their own boundaries, and mmap knows no alignment: more is mapped, and
  // what stands out is given back.
  if (bytes > SIZE_MAX - kHugePage - kPage) return nullptr;
  const size_t kept = (bytes + kPage - 1) / kPage * kPage;
  const size_t mapped = kept + kHugePage;
  void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<uint8_t*>(memory);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before != 0) ::munmap(begin, before);
  begin += before;
  if (mapped - before > kept) ::munmap(begin + kept, mapped - before - kept);
  ::madvise(begin, kept, MADV_HUGEPAGE);  // advice: without it the bytes are the same
  return {begin, [kept](uint8_t* p) { ::munmap(p, kept); }};
}

// Gives the pages that lie wholly in a block back to the system; the addresses stay taken.
void give_back(uint8_t* begin, size_t bytes) {
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + bytes) / kPage * kPage;
  if (first < last)
    ::madvise(begin + (first - reinterpret_cast<uintptr_t>(begin)), last - first, MADV_DONTNEED);
}

// The chunk from which small blocks are cut. The memory of a block goes with it, the addresses of a
// chunk with its last block.
class Chunks {
 public:
  std::shared_ptr<void> cut(size_t bytes) {
    const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::lock_guard lock(mutex_);
    std::shared_ptr<uint8_t> chunk = chunk_.lock();
    if (chunk == nullptr || kChunk - used_ < size) {
      chunk = map_pages(kChunk);
      if (chunk == nullptr) return nullptr;
      chunk_ = chunk;
      used_ = 0;
    }
    uint8_t* const begin = chunk.get() + used_;
    used_ += size;
    return {begin, [chunk = std::move(chunk), size](uint8_t* p) { give_back(p, size); }};
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<uint8_t> chunk_;
  size_t used_ = 0;
};
#endif

}  // namespace

std::shared_ptr<void> allocate_pages(size_t bytes) {
#if defined(__linux__)
  return map_pages(bytes);
#else
  void* memory = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, bytes);
  return {memory, [](void* p) { ::operator delete (p, std::align_val_t{kAlignment}); }};
#endif
}

std::shared_ptr<void> allocate_zeroed(size_t bytes) {
#if defined(__linux__)
  if (bytes > kChunk / 2) return map_pages(bytes);
  static Chunks chunks;
  return chunks.cut(bytes);
#else
  return allocate_pages(bytes);
#endif
}

}  // namespace tandem
