// A tokenizer's normalizers, run in order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/regex.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

/// Immutable and thread-safe.
class NormalizerChain {
 public:
  static Result<NormalizerChain> build(const std::vector<Normalizer>& parts);

  [[nodiscard]] bool empty() const { return steps_.empty(); }
  /// Normalizes `text` (valid UTF-8) in place. `marks`, if given, has one mark a byte and is
  /// carried along; where a step mixes bytes, the result came from outside if any of them did.
  Status apply(std::string& text, std::string* marks) const;

 private:
  struct Step {
    Normalizer part;
    std::optional<Regex> regex;
  };
  std::vector<Step> steps_;
};

/// Normalized text may be this many bytes long; more is refused.
constexpr size_t kMaxNormalizedBytes = size_t{1} << 30;

}  // namespace tandem::text
