// RMS and layer normalization. Statistics are exact integer sums; what is left is elementwise.
#pragma once

#include <cstdint>
#include <span>

#include "arithmetic/format.h"

namespace tandem::arithmetic {

/// The two constants of a norm over n values: round_f32(1 / n) and round_f32(1 / n^2), and epsilon.
struct NormConstants {
  uint32_t n = 0;
  float inverse = 0;
  float inverse_square = 0;
  float epsilon = 0;

  NormConstants() = default;
  NormConstants(uint32_t count, double eps)
      : n(count),
        inverse(static_cast<float>(1.0 / count)),
        inverse_square(static_cast<float>(1.0 / (double{static_cast<double>(count)} * count))),
        epsilon(static_cast<float>(eps)) {}
};

/// Largest exponent of a quantized vector that a norm takes: below it, |x| < 2^107 and the factor
/// is a normal number. Beyond, a norm fails as if x were not finite.
inline constexpr int kMaxNormExponent = 92;

/// Factor 1 / sqrt(a * 2^(2 exponent) + epsilon) as binary32, where `a` is the mean square (or
/// variance) in units of the 16-bit quantization. a = 0 and epsilon = 0 give 0.
///   exponent < -60 and epsilon > 0:  v = epsilon,                       u = 0
///   else:                            v = a + epsilon * 2^(-2 exponent), u = exponent
/// factor = inverse_square_root(v) * 2^-u; the scalings by powers of two are exact, and
/// epsilon * 2^(-2 exponent) is taken as 0 when exponent > 40.
float norm_factor(float a, int exponent, float epsilon);

/// y[i] = (x[i] * factor) * weight[i], factor from the mean square
/// a = round_f32(sum of q^2) * inverse with q = quantize(x). `scratch` holds n values.
/// Returns false if x is not finite or its exponent is above kMaxNormExponent.
[[nodiscard]] bool rms_norm(std::span<const float> x, std::span<const float> weight,
                            const NormConstants& constants, std::span<int16_t> scratch,
                            std::span<float> y);

/// y[i] = (((x[i] - mean) * factor) * weight[i]) + bias[i], each operation rounded once; with
/// q = quantize(x), s = sum q, mean = (round_f32(s) * inverse) * 2^exponent, and the variance
/// a = round_f32(n * sum q^2 - s^2) * inverse_square.
[[nodiscard]] bool layer_norm(std::span<const float> x, std::span<const float> weight,
                              std::span<const float> bias, const NormConstants& constants,
                              std::span<int16_t> scratch, std::span<float> y);

}  // namespace tandem::arithmetic
