// What passes and hops took lately.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem::ring {

/// The last 64 values of something.
class Recent {
 public:
  void add(double value) { values_[count_++ % values_.size()] = value; }
  /// 0 if there is none.
  [[nodiscard]] double median() const {
    auto values = values_;
    const size_t count = std::min(count_, values.size());
    if (count == 0) return 0;
    const auto middle = values.begin() + static_cast<ptrdiff_t>(count / 2);
    std::nth_element(values.begin(), middle, values.begin() + static_cast<ptrdiff_t>(count));
    return *middle;
  }

 private:
  std::array<double, 64> values_{};
  size_t count_ = 0;
};

/// How many passes a stage ran, and for how long. Only ever grows.
struct PassTotals {
  uint64_t passes = 0;
  uint64_t microseconds = 0;
  uint64_t single_passes = 0;  ///< those of one token
  uint64_t single_microseconds = 0;

  void add(uint32_t tokens, uint64_t took) {
    ++passes;
    microseconds += took;
    if (tokens != 1) return;
    ++single_passes;
    single_microseconds += took;
  }
  /// Mean milliseconds of the passes of one token since `before`; of all if none was of one token;
  /// 0 if there were none. The mean, and not the median, is what adds up over stages to a pass.
  [[nodiscard]] double mean_ms_since(const PassTotals& before) const {
    const auto mean = [](uint64_t count, uint64_t time) {
      return static_cast<double>(time) * 1e-3 / static_cast<double>(count);
    };
    if (single_passes > before.single_passes) {
      return mean(single_passes - before.single_passes,
                  single_microseconds - before.single_microseconds);
    }
    if (passes > before.passes) {
      return mean(passes - before.passes, microseconds - before.microseconds);
    }
    return 0;
  }
};

/// What a stage's passes took between two looks at its totals.
class PassMeans {
 public:
  /// Mean milliseconds since the look before; if there were no passes, what was found then.
  double look(const PassTotals& now) {
    // A stage that was loaded anew counts anew.
    if (now.passes < before_.passes) before_ = {};
    if (now.passes > before_.passes) last_ = now.mean_ms_since(before_);
    before_ = now;
    return last_;
  }
  /// Leaves out what ran until now.
  void skip(const PassTotals& now) { before_ = now; }

 private:
  PassTotals before_;
  double last_ = 0;
};

}  // namespace tandem::ring
