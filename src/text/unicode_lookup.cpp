#include <algorithm>

#include "text/unicode_table.h"

namespace tandem::text {

uint32_t unicode_bits(uint32_t code_point) {
  const std::span<const uint32_t> runs = unicode_runs();
  const auto after = std::upper_bound(runs.begin(), runs.end(), code_point << 11 | 2047U);
  return *(after - 1) & 2047U;
}

}  // namespace tandem::text
