// The known cases that each set of kernels answers before it may compute: a backend earns its place
// at start-up. A wrong bit names the step.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::kernels {

/// What one instruction set answered.
struct SelfTestReport {
  std::string isa;
  uint32_t steps = 0;                ///< steps that were run
  std::vector<std::string> differs;  ///< steps whose answer differs from the stored one

  [[nodiscard]] bool ok() const { return differs.empty(); }
};

/// Runs each step of the set "scalar", "avx2", "avx512" or "simd128" on known cases, ragged shapes
/// and extremes among them, and compares the bits with answers stored in the program, so that a
/// reference that was compiled wrongly is found as well. A few milliseconds. Errors: kUnsupported
/// if this machine or build has no such set, kInvalid for an unknown name.
Result<SelfTestReport> self_test_report(std::string_view isa);

/// Reports of every set that this machine can run, the reference first.
std::vector<SelfTestReport> self_test_reports();

/// Success, or an error that names the set and the steps that differ. The first call for a set
/// runs the cases, later ones return its result. Thread-safe.
Status self_test(std::string_view isa);

}  // namespace tandem::kernels
