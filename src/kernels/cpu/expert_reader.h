// Reads experts that lie in mapped files, beside the thread that runs passes: several at a time,
// each handed over as soon as it is there, so that a slow one holds up none of the others.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/packed.h"

namespace tandem::kernels::cpu {

/// Members are for the thread that runs passes.
class ExpertReader {
 public:
  ExpertReader();
  /// Waits for what is being read.
  ~ExpertReader();
  ExpertReader(const ExpertReader&) = delete;
  ExpertReader& operator=(const ExpertReader&) = delete;

  /// An expert that is in memory, or why it can't be.
  struct Arrival {
    size_t place = 0;  ///< among those that begin() was given
    Status status;
  };

  /// Begins to read all of these. Only once all arrivals of the call before were taken.
  void begin(std::span<const std::shared_ptr<OnDemand>> experts);
  /// Waits until there is one that was not given yet, and gives all of them. Nothing: all were
  /// given.
  [[nodiscard]] std::vector<Arrival> wait();

 private:
  struct Work;

  std::unique_ptr<Work> work_;  // null: nothing was read yet
};

}  // namespace tandem::kernels::cpu
