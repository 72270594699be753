#include "base/block.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace tandem {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

uint8_t* map(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
}

// Regression: where the first boundary of a huge page lay near a mapping's end, up to 60 KB of what
// followed it went with the block.
TEST(Block, GivesBackNothingButItsOwnPages) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t bytes = page + 1;
  const size_t hole = bytes + kHugePage + page - 1;  // what a block might map, in whole pages
  const size_t size = 4 * kHugePage;
  uint8_t* around = map(size);
  ASSERT_NE(around, nullptr);
  // The system takes the highest place that is large enough: all above are filled first.
  std::vector<uint8_t*> fillers;
  do {
    fillers.push_back(map(hole));
    ASSERT_NE(fillers.back(), nullptr);
  } while (fillers.back() > around && fillers.size() < 1000);
  // A hole just behind a boundary, so that the next one is near its end.
  uint8_t* boundary = around + kHugePage - reinterpret_cast<uintptr_t>(around) % kHugePage;
  ::munmap(boundary + page, hole / page * page);
  uint8_t* behind = boundary + page + hole / page * page;
  const auto left = static_cast<size_t>(around + size - behind);
  std::memset(behind, 1, left);
  std::shared_ptr<void> block = allocate_pages(bytes);
  ASSERT_NE(block, nullptr);
  std::memset(block.get(), 2, bytes);
  block.reset();
  std::vector<unsigned char> there(left / page);
  EXPECT_EQ(::mincore(behind, left / page * page, there.data()), 0) << "pages are gone";
  ::munmap(around, static_cast<size_t>(boundary + page - around));
  ::munmap(behind, left);
  for (uint8_t* filler : fillers) ::munmap(filler, hole);
}

TEST(Block, TooMuchIsNoMemory) {
  EXPECT_EQ(allocate_pages(SIZE_MAX), nullptr);
  EXPECT_EQ(allocate_pages(SIZE_MAX - (size_t{2} << 20)), nullptr);
}

}  // namespace
}  // namespace tandem
