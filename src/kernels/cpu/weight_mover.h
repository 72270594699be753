// Brings weights out of mapped files into huge pages, between passes: a start does not wait for the
// copy, and decoding reads memory of its own up to a seventh faster than mapped pages.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/block.h"
#include "base/thread_pool.h"
#include "kernels/packed.h"

namespace tandem::kernels::cpu {

/// Copies the mapped ones of a backend's matrices, one after another; what a matrix lay in is given
/// back as soon as it is copied, so that hardly more than the weights is in memory at once. Without
/// memory for a copy the rest stays where it is. One thread at a time.
class WeightMover {
 public:
  using Clock = std::chrono::steady_clock;

  /// Goes on with it, on all threads of `pool`, until `until` or a few megabytes beyond, and puts
  /// what is complete in the places of the same matrices. Always with the same `matrices`, and not
  /// during a pass. True once there is nothing left to move.
  bool move(std::span<PackedMatrix> matrices, ThreadPool& pool, Clock::time_point until);

 private:
  bool place(const PackedMatrix& matrix);

  size_t next_ = 0;               ///< matrices before it are done
  std::shared_ptr<void> memory_;  ///< of huge pages, which small matrices share
  size_t used_ = 0;
  size_t room_ = 0;
  bool exhausted_ = false;
  // The matrix under way; empty between two.
  Block<uint8_t> data_;
  Block<float> row_scales_;
  uint8_t* to_ = nullptr;  ///< where data_ lies
  size_t copied_ = 0;
};

}  // namespace tandem::kernels::cpu
