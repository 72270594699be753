// Brings weights out of mapped files into huge pages, beside the passes: a start does not wait for
// the copy, and decoding reads memory of its own up to a seventh faster than mapped pages.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/packed.h"

namespace tandem::kernels::cpu {

/// A thread of low priority copies the mapped ones of a backend's matrices, one after another, a
/// little ahead of their being taken, so that hardly more than the weights is in memory at once.
/// Without memory for a copy, or without a thread, matrices stay where they are.
class WeightMover {
 public:
  /// Starts with whatever of `matrices` is mapped; does nothing if that is none.
  explicit WeightMover(std::span<const PackedMatrix> matrices);
  /// Ends a copy that is under way.
  ~WeightMover();
  WeightMover(const WeightMover&) = delete;
  WeightMover& operator=(const WeightMover&) = delete;

  /// Puts what has been copied since in the places of the same matrices. For the one thread that
  /// runs passes, between two of them. True once there is nothing left to move.
  bool take(std::span<PackedMatrix> matrices);

 private:
  struct Work;
  std::unique_ptr<Work> work_;  ///< null: nothing to move
};

}  // namespace tandem::kernels::cpu
