#include "arithmetic/norm.h"

#include "arithmetic/exponential.h"
#include "arithmetic/quantize.h"

namespace tandem::arithmetic {

float norm_factor(float a, int exponent, float epsilon) {
  float v = 0;
  int unit = 0;
  if (exponent < -60 && epsilon > 0) {
    v = epsilon;
  } else {
    const float scaled_epsilon =
        exponent > 40 ? 0.0F : epsilon * power_of_two(-2 * exponent < 120 ? -2 * exponent : 120);
    v = a + scaled_epsilon;
    unit = exponent;
  }
  if (v == 0) return 0;
  const Scaled root = inverse_square_root(v);
  return static_cast<float>(root.mantissa) * power_of_two(root.exponent - unit);
}

bool rms_norm(std::span<const float> x, std::span<const float> weight,
              const NormConstants& constants, std::span<int16_t> scratch, std::span<float> y) {
  int exponent = 0;
  if (!quantize(x, scratch, exponent) || exponent > kMaxNormExponent) return false;
  int64_t squares = 0;
  for (const int16_t q : scratch) squares += int32_t{q} * int32_t{q};
  const float a = static_cast<float>(squares) * constants.inverse;
  const float factor = norm_factor(a, exponent, constants.epsilon);
  for (size_t i = 0; i < x.size(); ++i) {
    const float normed = x[i] * factor;
    y[i] = normed * weight[i];
  }
  return true;
}

bool layer_norm(std::span<const float> x, std::span<const float> weight,
                std::span<const float> bias, const NormConstants& constants,
                std::span<int16_t> scratch, std::span<float> y) {
  int exponent = 0;
  if (!quantize(x, scratch, exponent) || exponent > kMaxNormExponent) return false;
  int64_t squares = 0;
  int64_t sum = 0;
  for (const int16_t q : scratch) {
    squares += int32_t{q} * int32_t{q};
    sum += q;
  }
  const int64_t variance = int64_t{constants.n} * squares - sum * sum;
  const float a = static_cast<float>(variance) * constants.inverse_square;
  const float factor = norm_factor(a, exponent, constants.epsilon);
  const float unit_mean = static_cast<float>(sum) * constants.inverse;
  const float mean = unit_mean * power_of_two(exponent);
  for (size_t i = 0; i < x.size(); ++i) {
    const float centred = x[i] - mean;
    const float normed = centred * factor;
    const float weighted = normed * weight[i];
    y[i] = weighted + bias[i];
  }
  return true;
}

}  // namespace tandem::arithmetic
