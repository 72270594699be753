#include "arithmetic/exponential.h"

#include <cmath>

namespace tandem::arithmetic {

Scaled inverse_square_root(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  int exponent = static_cast<int>(bits >> 23) - 127 - 23;
  uint64_t m = (bits & 0x7fffffU) | 0x800000U;
  if ((exponent & 1) != 0) {
    m *= 2;
    exponent -= 1;
  }
  uint64_t root = 0;
  for (uint64_t bit = uint64_t{1} << 19; bit != 0; bit >>= 1) {
    const uint64_t candidate = root | bit;
    if (candidate * candidate <= (uint64_t{1} << 62) / m) root = candidate;
  }
  return {static_cast<uint32_t>(root), -31 - exponent / 2};
}

Scaled logistic(float x) {
  const float scaled = std::bit_cast<float>(magnitude_bits(x)) * kLog2e16;
  // Written so that what is not a number counts as large: it may not become an integer.
  const uint32_t d = scaled < 4194304.0F ? static_cast<uint32_t>(round_to_int(scaled)) : 4194304U;
  const uint32_t k = d >> 16;
  const uint32_t m = exp2_fraction(d & 65535U);
  const uint32_t e = k > 17 ? 0 : static_cast<uint32_t>(shift_round(m, k));
  const uint32_t denominator = 65536U + e;
  const bool negative = std::signbit(x);
  const uint32_t numerator = negative ? m : 65536U;
  const uint32_t s = (numerator * 32768U + denominator / 2) / denominator;
  return {s, -15 - (negative ? static_cast<int>(k) : 0)};
}

}  // namespace tandem::arithmetic
