// Experts that lie in mapped files: which of them are in memory of their own, which have to be read
// before they are used. Those that are used most are copied, up to a limit; the others are read
// when they are chosen, and stay as long as the system has room for their pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/packed.h"

namespace tandem::kernels::cpu {

/// Members are for the thread that runs passes; copies are made by another one of low priority.
class ExpertMemory {
 public:
  ExpertMemory();
  /// Ends a copy that is under way.
  ~ExpertMemory();
  ExpertMemory(const ExpertMemory&) = delete;
  ExpertMemory& operator=(const ExpertMemory&) = delete;

  /// Most bytes of copies. Before the first pass; without it nothing is copied.
  void set_limit(uint64_t bytes) { limit_ = bytes; }
  /// Between two passes: puts copies in the places of the matrices, and chooses what is copied next
  /// and what makes room for it.
  void begin_pass(std::span<PackedMatrix> matrices);
  /// Counts a use of an expert whose matrices are `ids` of `matrices`, at least one. True if it has
  /// to be fetched first: it is not copied, and its pages may not be in memory.
  bool use(std::span<const uint32_t> ids, std::span<const PackedMatrix> matrices);
  /// Bytes of copies in use now.
  [[nodiscard]] uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct Expert {
    std::vector<uint32_t> ids;
    std::vector<PackedMatrix> mapped;  // where they lie on disk
    uint64_t bytes = 0;
    uint64_t last_pass = 0;  // of its last use
    uint32_t uses = 0;       // of late: halved now and then
    enum class State : uint8_t { kMapped, kCopying, kCopied } state = State::kMapped;
  };
  struct Work;

  void install(std::span<PackedMatrix> matrices);
  void choose(std::span<PackedMatrix> matrices);
  void evict(Expert& expert, std::span<PackedMatrix> matrices);

  uint64_t limit_ = 0;
  uint64_t copied_bytes_ = 0;  // those under way included
  uint64_t pass_ = 0;
  std::vector<Expert> experts_;
  std::vector<uint32_t> expert_of_;  // by the first matrix: index + 1; 0: not seen yet
  std::unique_ptr<Work> work_;       // null: no thread is needed, or to be had
};

}  // namespace tandem::kernels::cpu
