// The elementwise steps with NEON: the operations of src/arithmetic in their order, four or eight
// at once, and its own functions for the last few elements. No fused multiply-add on floats
// anywhere.
#include <bit>
#include <cstring>

#include "arithmetic/activation.h"
#include "arithmetic/hidden.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"
#include "kernels/cpu/neon_vector.h"

#if defined(__aarch64__)

namespace tandem::kernels::cpu::neon {
namespace {

namespace a = arithmetic;

inline uint32x4_t magnitude(float32x4_t x) {
  return vbicq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x80000000U));
}

uint32_t max_magnitude(const float* x, size_t n) {
  uint32x4_t most[2] = {vdupq_n_u32(0), vdupq_n_u32(0)};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    most[0] = vmaxq_u32(most[0], magnitude(vld1q_f32(x + i)));
    most[1] = vmaxq_u32(most[1], magnitude(vld1q_f32(x + i + 4)));
  }
  uint32_t bits = vmaxvq_u32(vmaxq_u32(most[0], most[1]));
  for (; i < n; ++i) bits = a::magnitude_bits(x[i]) > bits ? a::magnitude_bits(x[i]) : bits;
  return bits;
}

// floor(n / d) for 2^16 <= d <= 2^17 and a quotient of at most 2^15. The reciprocal's estimate is
// within 2^-8 and one Newton step squares that, so the product is within 0.51 of the quotient: what
// is left over says whether it is one too large or too small.
inline uint32x4_t divide(uint32x4_t n, uint32x4_t d) {
  const float32x4_t divisor = vcvtq_f32_u32(d);
  const float32x4_t estimate = vrecpeq_f32(divisor);
  const float32x4_t reciprocal = vmulq_f32(estimate, vrecpsq_f32(divisor, estimate));
  const uint32x4_t guess = vcvtq_u32_f32(vmulq_f32(vcvtq_f32_u32(n), reciprocal));
  const int32x4_t rest = vreinterpretq_s32_u32(vmlsq_u32(n, guess, d));
  const uint32x4_t small = vcgeq_s32(rest, vreinterpretq_s32_u32(d));
  const uint32x4_t large = vcltzq_s32(rest);
  return vaddq_u32(vsubq_u32(guess, small), large);
}

// arithmetic::logistic_f32.
inline float32x4_t logistic(float32x4_t x) {
  const float32x4_t scaled = vmulq_n_f32(vreinterpretq_f32_u32(magnitude(x)), a::kLog2e16);
  // Not a number counts as large.
  const uint32x4_t small = vcltq_f32(scaled, vdupq_n_f32(4194304.0F));
  const uint32x4_t d = vbslq_u32(small, vcvtnq_u32_f32(scaled), vdupq_n_u32(4194304));
  const uint32x4_t k = vshrq_n_u32(d, 16);
  const uint32x4_t m = exp2_fraction(vandq_u32(d, vdupq_n_u32(65535)));
  // shift_round(m, k): k is at most 64, and a rounding shift by 18 and more gives 0, as it must.
  const uint32x4_t e = vrshlq_u32(m, vnegq_s32(vreinterpretq_s32_u32(k)));
  const uint32x4_t denominator = vaddq_u32(e, vdupq_n_u32(65536));
  const uint32x4_t negative = vcltzq_s32(vreinterpretq_s32_f32(x));
  const uint32x4_t chosen = vbslq_u32(negative, m, vdupq_n_u32(65536));
  const uint32x4_t numerator = vsraq_n_u32(vshlq_n_u32(chosen, 15), denominator, 1);
  const uint32x4_t s = divide(numerator, denominator);
  const int32x4_t exponent =
      vsubq_s32(vdupq_n_s32(-15), vreinterpretq_s32_u32(vandq_u32(negative, k)));
  return vmulq_f32(vcvtq_f32_u32(s), power_of_two(exponent));
}

struct NormSums {
  int64_t squares = 0;
  int64_t values = 0;
};

// Exact: two squares are at most 2 * 32639^2 < 2^31.
NormSums sum_all(const int16_t* q, size_t n) {
  int64x2_t squares = vdupq_n_s64(0);
  int64x2_t values = vdupq_n_s64(0);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const int16x8_t x = vld1q_s16(q + i);
    const int32x4_t pairs = vmlal_high_s16(vmull_s16(vget_low_s16(x), vget_low_s16(x)), x, x);
    squares = vpadalq_s32(squares, pairs);
    values = vpadalq_s32(values, vpaddlq_s16(x));
  }
  NormSums sums{vaddvq_s64(squares), vaddvq_s64(values)};
  for (; i < n; ++i) {
    sums.squares += int32_t{q[i]} * int32_t{q[i]};
    sums.values += q[i];
  }
  return sums;
}

}  // namespace

void add(float* x, const float* y, size_t n) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(x + i, vaddq_f32(vld1q_f32(x + i), vld1q_f32(y + i)));
  for (; i < n; ++i) x[i] += y[i];
}

bool quantize(const float* x, size_t n, int16_t* values, int32_t* exponent) {
  const uint32_t bits = max_magnitude(x, n);
  const bool finite = bits < a::kInfinityBits;
  *exponent = finite ? a::quantize_exponent(bits) : a::kMinExponent - 14;
  if (!finite || bits < a::kMinBits) {
    std::memset(values, 0, n * sizeof(int16_t));
    return finite;
  }
  const float factor = a::power_of_two(-*exponent);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const int32x4_t first = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), factor));
    const int32x4_t second = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), factor));
    vst1q_s16(values + i, vmovn_high_s32(vmovn_s32(first), second));
  }
  for (; i < n; ++i) values[i] = static_cast<int16_t>(a::round_to_int(x[i] * factor));
  return true;
}

bool rms_norm(const float* x, const float* weight, const a::NormConstants& constants,
              int16_t* scratch, float* y) {
  const size_t n = constants.n;
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const float mean_square = static_cast<float>(sum_all(scratch, n).squares) * constants.inverse;
  const float factor = a::norm_factor(mean_square, exponent, constants.epsilon);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t normed = vmulq_n_f32(vld1q_f32(x + i), factor);
    vst1q_f32(y + i, vmulq_f32(normed, vld1q_f32(weight + i)));
  }
  for (; i < n; ++i) {
    const float normed = x[i] * factor;
    y[i] = normed * weight[i];
  }
  return true;
}

bool layer_norm(const float* x, const float* weight, const float* bias,
                const a::NormConstants& constants, int16_t* scratch, float* y) {
  const size_t n = constants.n;
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const NormSums sums = sum_all(scratch, n);
  const int64_t variance = int64_t{constants.n} * sums.squares - sums.values * sums.values;
  const float scaled_variance = static_cast<float>(variance) * constants.inverse_square;
  const float factor = a::norm_factor(scaled_variance, exponent, constants.epsilon);
  const float unit_mean = static_cast<float>(sums.values) * constants.inverse;
  const float mean = unit_mean * a::power_of_two(exponent);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t centred = vsubq_f32(vld1q_f32(x + i), vdupq_n_f32(mean));
    const float32x4_t normed = vmulq_n_f32(centred, factor);
    const float32x4_t weighted = vmulq_f32(normed, vld1q_f32(weight + i));
    vst1q_f32(y + i, vaddq_f32(weighted, vld1q_f32(bias + i)));
  }
  for (; i < n; ++i) {
    const float centred = x[i] - mean;
    const float normed = centred * factor;
    const float weighted = normed * weight[i];
    y[i] = weighted + bias[i];
  }
  return true;
}

void gated_silu(const float* gate, const float* up, size_t n, float* out) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t g = vld1q_f32(gate + i);
    const float32x4_t silu = vmulq_f32(g, logistic(g));
    vst1q_f32(out + i, vmulq_f32(silu, vld1q_f32(up + i)));
  }
  for (; i < n; ++i) out[i] = a::gated_silu(gate[i], up[i]);
}

void gelu(const float* x, size_t n, float* out) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t v = vld1q_f32(x + i);
    const float32x4_t square = vmulq_f32(v, v);
    const float32x4_t cubic = vmulq_n_f32(square, 0.07135481282F);
    const float32x4_t sum = vaddq_f32(cubic, vdupq_n_f32(1.59576912161F));
    const float32x4_t argument = vmulq_f32(v, sum);
    vst1q_f32(out + i, vmulq_f32(v, logistic(argument)));
  }
  for (; i < n; ++i) out[i] = a::gelu_tanh(x[i]);
}

void clamped_swiglu(const float* gate, const float* up, size_t n, float alpha, float limit,
                    float* out) {
  // Minimum and maximum keep what is not a number.
  const float32x4_t most = vdupq_n_f32(limit);
  const float32x4_t least = vdupq_n_f32(-limit);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t g = vminq_f32(most, vld1q_f32(gate + i));
    const float32x4_t u = vmaxq_f32(least, vminq_f32(most, vld1q_f32(up + i)));
    const float32x4_t glu = vmulq_f32(g, logistic(vmulq_f32(g, vdupq_n_f32(alpha))));
    vst1q_f32(out + i, vmulq_f32(vaddq_f32(u, vdupq_n_f32(1.0F)), glu));
  }
  for (; i < n; ++i) out[i] = a::clamped_swiglu(gate[i], up[i], alpha, limit);
}

void weighted_sum(const float* const* rows, const float* weights, size_t count, size_t n,
                  float* out) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    float32x4_t sum = vmulq_f32(vdupq_n_f32(weights[0]), vld1q_f32(rows[0] + i));
    for (size_t r = 1; r < count; ++r) {
      const float32x4_t product = vmulq_f32(vdupq_n_f32(weights[r]), vld1q_f32(rows[r] + i));
      sum = vaddq_f32(sum, product);
    }
    vst1q_f32(out + i, sum);
  }
  for (; i < n; ++i) {
    float sum = weights[0] * rows[0][i];
    for (size_t r = 1; r < count; ++r) {
      const float product = weights[r] * rows[r][i];
      sum += product;
    }
    out[i] = sum;
  }
}

bool to_boundary(const float* x, size_t n, uint16_t* half, int16_t* exponent) {
  const uint32_t bits = max_magnitude(x, n);
  *exponent = 0;
  if (bits < a::kMinBits || bits >= a::kInfinityBits) {
    std::memset(half, 0, n * sizeof(uint16_t));
    return bits < a::kInfinityBits;
  }
  *exponent = static_cast<int16_t>(static_cast<int>(bits >> 23) - 127 - 14);
  const float factor = a::power_of_two(-*exponent);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    vst1_u16(half + i, vreinterpret_u16_f16(vcvt_f16_f32(vmulq_n_f32(vld1q_f32(x + i), factor))));
  }
  for (; i < n; ++i) half[i] = a::to_half(x[i] * factor);
  return true;
}

void from_boundary(const uint16_t* half, size_t n, int16_t exponent, float* x) {
  const float factor = a::power_of_two(exponent);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    vst1q_f32(x + i, vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half + i))), factor));
  }
  for (; i < n; ++i) x[i] = a::from_half(half[i]) * factor;
}

int32_t rotate(int16_t* x, size_t n, int32_t exponent, const a::Rotation* rotations,
               int32_t* scratch) {
  static_assert(sizeof(a::Rotation) == 2 * sizeof(int32_t));
  const size_t half = n / 2;
  int32x4_t most = vdupq_n_s32(0);
  size_t i = 0;
  for (; i + 4 <= half; i += 4) {
    const int32x4x2_t r = vld2q_s32(reinterpret_cast<const int32_t*>(rotations + i));
    const int32x4_t u = vmovl_s16(vld1_s16(x + i));
    const int32x4_t v = vmovl_s16(vld1_s16(x + i + half));
    // |sum| <= 2 * 32639 * 32768 < 2^31.
    const int32x4_t p = vmlsq_s32(vmulq_s32(u, r.val[0]), v, r.val[1]);
    const int32x4_t q = vmlaq_s32(vmulq_s32(v, r.val[0]), u, r.val[1]);
    vst1q_s32(scratch + i, p);
    vst1q_s32(scratch + i + half, q);
    most = vmaxq_s32(most, vmaxq_s32(vabsq_s32(p), vabsq_s32(q)));
  }
  int32_t largest = vmaxvq_s32(most);
  for (; i < half; ++i) {
    const a::Rotation r = rotations[i];
    scratch[i] = x[i] * r.cosine - x[i + half] * r.sine;
    scratch[i + half] = x[i + half] * r.cosine + x[i] * r.sine;
    for (const int32_t value : {scratch[i], scratch[i + half]}) {
      largest = (value < 0 ? -value : value) > largest ? (value < 0 ? -value : value) : largest;
    }
  }
  unsigned shift = 0;
  while (a::shift_round(largest, shift) > a::kMaxActivation) ++shift;
  const int32x4_t down = vdupq_n_s32(-static_cast<int32_t>(shift));
  for (i = 0; i + 8 <= n; i += 8) {
    const int32x4_t first = vrshlq_s32(vld1q_s32(scratch + i), down);
    const int32x4_t second = vrshlq_s32(vld1q_s32(scratch + i + 4), down);
    vst1q_s16(x + i, vmovn_high_s32(vmovn_s32(first), second));
  }
  for (; i < n; ++i) x[i] = static_cast<int16_t>(a::shift_round(scratch[i], shift));
  return exponent - 15 + static_cast<int32_t>(shift);
}

}  // namespace tandem::kernels::cpu::neon

#endif
