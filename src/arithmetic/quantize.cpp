#include "arithmetic/quantize.h"

#include <algorithm>
#include <cstdlib>

namespace tandem::arithmetic {

uint32_t max_magnitude(std::span<const float> x) {
  uint32_t bits = 0;
  for (const float value : x) bits = std::max(bits, magnitude_bits(value));
  return bits;
}

bool quantize(std::span<const float> x, std::span<int16_t> values, int& exponent) {
  const uint32_t bits = max_magnitude(x);
  if (bits >= kInfinityBits) {
    std::fill(values.begin(), values.end(), int16_t{0});
    exponent = kMinExponent - 14;
    return false;
  }
  exponent = quantize_exponent(bits);
  if (bits < kMinBits) {
    std::fill(values.begin(), values.end(), int16_t{0});
    return true;
  }
  const float factor = power_of_two(-exponent);
  for (size_t i = 0; i < x.size(); ++i) {
    values[i] = static_cast<int16_t>(round_to_int(x[i] * factor));
  }
  return true;
}

int quantize_integers(std::span<const int32_t> r, int exponent, std::span<int16_t> values) {
  int32_t largest = 0;
  for (const int32_t value : r) largest = std::max(largest, std::abs(value));
  unsigned shift = 0;
  while (shift_round(largest, shift) > kMaxActivation) ++shift;
  for (size_t i = 0; i < r.size(); ++i) {
    values[i] = static_cast<int16_t>(shift_round(r[i], shift));
  }
  return exponent + static_cast<int>(shift);
}

int32_t narrow(std::span<const int16_t> values, std::span<int8_t> q) {
  int32_t most = 0;
  int32_t least = 0;
  for (const int16_t v : values) {
    most = std::max<int32_t>(most, v);
    least = std::min<int32_t>(least, v);
  }
  const auto divide = [](int32_t v, int32_t m) {
    const int32_t x = v + m / 2;
    return x >= 0 ? x / m : -((m - 1 - x) / m);
  };
  // One below the largest magnitude's 127th part is the first that can do.
  int32_t m = std::max(1, std::max(most, -least) / 128);
  while (divide(most, m) > 127 || divide(least, m) < -127) ++m;
  for (size_t i = 0; i < values.size(); ++i) q[i] = static_cast<int8_t>(divide(values[i], m));
  return m;
}

}  // namespace tandem::arithmetic
