// What passes of a stage and the way to another device take: measured where they happen.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/hidden.h"
#include "model/stage.h"
#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::ring {

/// Median, least and greatest of `values`, which must not be empty. Values below 1 count as 1.
wire::Spread spread(std::vector<uint64_t> values);

/// Times passes of a stage, one at a time, so that whoever runs it can do other things in between.
/// Not thread-safe.
class StageMeter {
 public:
  StageMeter(model::Stage& stage, uint32_t hidden_size, uint32_t context);
  /// Begins, in the sequence that is there from before. Error: kInvalid if request.position and two
  /// passes of the widest width don't fit into `context`.
  Status begin(wire::Measure request);
  /// Runs one pass. True once everything has been measured. Errors: the stage's.
  Result<bool> step();
  [[nodiscard]] const wire::Measured& result() const { return measured_; }

 private:
  Result<uint64_t> pass(uint32_t tokens);

  model::Stage& stage_;
  const uint32_t hidden_size_;
  const uint32_t context_;
  wire::Measure request_;
  std::unique_ptr<model::Sequence> sequence_;
  uint32_t warmed_ = 0;  ///< passes of the width under way that were not timed
  uint64_t spent_ = 0;
  std::vector<uint64_t> times_;
  wire::Measured measured_;
  uint64_t random_ = 1;
};

/// Measures the way to the other end of `connection`, which answers kEcho frames, for about a
/// second. Errors: kPeer.
Result<wire::LinkTested> measure_link(wire::Connection& connection);

/// Answers the kEcho frame whose payload `connection` holds. Errors: kInvalid, kPeer.
Status answer_echo(wire::Connection& connection);

}  // namespace tandem::ring
