// The elementwise steps with SIMD128: the operations of src/arithmetic in their order, four at
// once, and its own functions for the last few elements. There is no shift by a vector: those
// become products with powers of two, exact in binary32 for the few bits they have.
#include <bit>

#include "arithmetic/activation.h"
#include "arithmetic/hidden.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"
#include "kernels/cpu/simd128_vector.h"

#if defined(__wasm_simd128__)

namespace tandem::kernels::cpu::simd128 {
namespace {

namespace a = arithmetic;

inline v128_t magnitude(v128_t x) {
  return wasm_v128_and(x, wasm_i32x4_const_splat(0x7fffffff));
}

inline int32_t reduce_max(v128_t x) {
  int32_t lanes[4];
  store(lanes, x);
  int32_t most = lanes[0];
  for (const int32_t lane : lanes) most = lane > most ? lane : most;
  return most;
}

TANDEM_KERNEL uint32_t max_magnitude(const float* x, size_t n) {
  v128_t most = wasm_i32x4_const_splat(0);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) most = wasm_i32x4_max(most, magnitude(load(x + i)));
  auto bits = static_cast<uint32_t>(reduce_max(most));
  for (; i < n; ++i) bits = a::magnitude_bits(x[i]) > bits ? a::magnitude_bits(x[i]) : bits;
  return bits;
}

// floor(n / d) of two lanes for 2^16 <= d <= 2^17 and a quotient below 2^16: both are exact in
// binary64, and the true quotient is an integer or at least 2^-17 away from the next one, far more
// than the rounding error of 2^-37.
inline v128_t divide(v128_t n, v128_t d) {
  return wasm_u32x4_trunc_sat_f64x2_zero(
      wasm_f64x2_div(wasm_f64x2_convert_low_u32x4(n), wasm_f64x2_convert_low_u32x4(d)));
}
inline v128_t divide_all(v128_t n, v128_t d) {
  const v128_t low = divide(n, d);
  const v128_t high = divide(wasm_i64x2_shuffle(n, n, 1, 1), wasm_i64x2_shuffle(d, d, 1, 1));
  return wasm_i64x2_shuffle(low, high, 0, 2);
}

// arithmetic::logistic_f32.
inline v128_t logistic(v128_t x) {
  const v128_t scaled = wasm_f32x4_mul(magnitude(x), wasm_f32x4_const_splat(a::kLog2e16));
  // Not a number counts as large.
  const v128_t small = wasm_f32x4_lt(scaled, wasm_f32x4_const_splat(4194304.0F));
  const v128_t d = wasm_v128_bitselect(round_small(scaled), wasm_i32x4_const_splat(4194304), small);
  const v128_t k = wasm_u32x4_shr(d, 16);
  const v128_t m = exp2_fraction(wasm_v128_and(d, wasm_i32x4_const_splat(65535)));
  // shift_round(m, k) = floor(m 2^-k + 1/2). For k <= 17 the sum has at most 18 bits; beyond it is
  // below 1 however it is rounded.
  const v128_t shifted =
      wasm_f32x4_mul(wasm_f32x4_convert_i32x4(m), power_of_two(wasm_i32x4_neg(k)));
  const v128_t e =
      wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_add(shifted, wasm_f32x4_const_splat(0.5F)));
  const v128_t denominator = wasm_i32x4_add(e, wasm_i32x4_const_splat(65536));
  const v128_t negative = wasm_i32x4_shr(x, 31);
  const v128_t chosen = wasm_v128_bitselect(m, wasm_i32x4_const_splat(65536), negative);
  const v128_t numerator =
      wasm_i32x4_add(wasm_i32x4_shl(chosen, 15), wasm_u32x4_shr(denominator, 1));
  const v128_t s = divide_all(numerator, denominator);
  const v128_t exponent = wasm_i32x4_sub(wasm_i32x4_const_splat(-15), wasm_v128_and(negative, k));
  return wasm_f32x4_mul(wasm_f32x4_convert_i32x4(s), power_of_two(exponent));
}

struct Sums {
  int64_t squares = 0;
  int64_t values = 0;
};

inline v128_t add_wide(v128_t total, v128_t sums) {
  return wasm_i64x2_add(
      total, wasm_i64x2_add(wasm_i64x2_extend_low_i32x4(sums), wasm_i64x2_extend_high_i32x4(sums)));
}

inline int64_t reduce_add(v128_t x) {
  return wasm_i64x2_extract_lane(x, 0) + wasm_i64x2_extract_lane(x, 1);
}

// Exact: two squares are at most 2 * 32639^2 < 2^31.
TANDEM_KERNEL Sums sum_all(const int16_t* q, size_t n) {
  const v128_t ones = wasm_i16x8_const_splat(1);
  v128_t squares = wasm_i64x2_const_splat(0);
  v128_t values = wasm_i64x2_const_splat(0);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const v128_t x = load(q + i);
    squares = add_wide(squares, wasm_i32x4_dot_i16x8(x, x));
    values = add_wide(values, wasm_i32x4_dot_i16x8(x, ones));
  }
  Sums sums{reduce_add(squares), reduce_add(values)};
  for (; i < n; ++i) {
    sums.squares += int32_t{q[i]} * int32_t{q[i]};
    sums.values += q[i];
  }
  return sums;
}

// arithmetic::to_half of four values, as 32-bit integers.
inline v128_t to_half(v128_t x) {
  const v128_t sign = wasm_v128_and(wasm_u32x4_shr(x, 16), wasm_i32x4_const_splat(0x8000));
  const v128_t size = magnitude(x);
  // Normal results: half of a last place, one less where the kept part is even, carries into it.
  const v128_t odd = wasm_v128_and(wasm_u32x4_shr(size, 13), wasm_i32x4_const_splat(1));
  const v128_t rounded = wasm_i32x4_add(wasm_i32x4_add(size, odd), wasm_i32x4_const_splat(0xfff));
  const v128_t normal =
      wasm_i32x4_sub(wasm_u32x4_shr(rounded, 13), wasm_i32x4_const_splat(112 << 10));
  // Subnormal ones: the last place of 1/2 in binary32 is theirs, 2^-24.
  const v128_t half = wasm_f32x4_const_splat(0.5F);
  const v128_t subnormal = wasm_i32x4_sub(wasm_f32x4_add(size, half), half);
  const v128_t tiny = wasm_i32x4_lt(size, wasm_i32x4_const_splat(0x38800000));  // 2^-14
  return wasm_v128_or(sign, wasm_v128_bitselect(subnormal, normal, tiny));
}

// arithmetic::from_half of four values, 32-bit integers.
inline v128_t from_half(v128_t h) {
  const v128_t sign = wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_const_splat(0x8000)), 16);
  const v128_t rest = wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_const_splat(0x7fff)), 13);
  // Exact for normal and subnormal ones alike.
  const v128_t value = wasm_f32x4_mul(rest, wasm_f32x4_const_splat(0x1p112F));
  const v128_t infinite = wasm_i32x4_ge(rest, wasm_i32x4_const_splat(31 << 23));
  const v128_t special = wasm_v128_or(rest, wasm_i32x4_const_splat(0x7f800000));
  return wasm_v128_or(sign, wasm_v128_bitselect(special, value, infinite));
}

}  // namespace

TANDEM_KERNEL void add(float* x, const float* y, size_t n) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) store(x + i, wasm_f32x4_add(load(x + i), load(y + i)));
  for (; i < n; ++i) x[i] += y[i];
}

TANDEM_KERNEL bool quantize(const float* x, size_t n, int16_t* values, int32_t* exponent) {
  const uint32_t bits = max_magnitude(x, n);
  const bool finite = bits < a::kInfinityBits;
  *exponent = finite ? a::quantize_exponent(bits) : a::kMinExponent - 14;
  if (!finite || bits < a::kMinBits) {
    std::memset(values, 0, n * sizeof(int16_t));
    return finite;
  }
  const float factor = a::power_of_two(-*exponent);
  const v128_t scale = wasm_f32x4_splat(factor);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const v128_t first = round_small(wasm_f32x4_mul(load(x + i), scale));
    const v128_t second = round_small(wasm_f32x4_mul(load(x + i + 4), scale));
    store(values + i, wasm_i16x8_narrow_i32x4(first, second));
  }
  for (; i < n; ++i) values[i] = static_cast<int16_t>(a::round_to_int(x[i] * factor));
  return true;
}

TANDEM_KERNEL bool rms_norm(const float* x, const float* weight, const a::NormConstants& constants,
                            int16_t* scratch, float* y) {
  const size_t n = constants.n;
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const float mean_square = static_cast<float>(sum_all(scratch, n).squares) * constants.inverse;
  const float factor = a::norm_factor(mean_square, exponent, constants.epsilon);
  const v128_t factors = wasm_f32x4_splat(factor);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const v128_t normed = wasm_f32x4_mul(load(x + i), factors);
    store(y + i, wasm_f32x4_mul(normed, load(weight + i)));
  }
  for (; i < n; ++i) {
    const float normed = x[i] * factor;
    y[i] = normed * weight[i];
  }
  return true;
}

TANDEM_KERNEL bool layer_norm(const float* x, const float* weight, const float* bias,
                              const a::NormConstants& constants, int16_t* scratch, float* y) {
  const size_t n = constants.n;
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const Sums sums = sum_all(scratch, n);
  const int64_t variance = int64_t{constants.n} * sums.squares - sums.values * sums.values;
  const float scaled_variance = static_cast<float>(variance) * constants.inverse_square;
  const float factor = a::norm_factor(scaled_variance, exponent, constants.epsilon);
  const float unit_mean = static_cast<float>(sums.values) * constants.inverse;
  const float mean = unit_mean * a::power_of_two(exponent);
  const v128_t factors = wasm_f32x4_splat(factor);
  const v128_t means = wasm_f32x4_splat(mean);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const v128_t centred = wasm_f32x4_sub(load(x + i), means);
    const v128_t normed = wasm_f32x4_mul(centred, factors);
    const v128_t weighted = wasm_f32x4_mul(normed, load(weight + i));
    store(y + i, wasm_f32x4_add(weighted, load(bias + i)));
  }
  for (; i < n; ++i) {
    const float centred = x[i] - mean;
    const float normed = centred * factor;
    const float weighted = normed * weight[i];
    y[i] = weighted + bias[i];
  }
  return true;
}

TANDEM_KERNEL void gated_silu(const float* gate, const float* up, size_t n, float* out) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const v128_t g = load(gate + i);
    const v128_t silu = wasm_f32x4_mul(g, logistic(g));
    store(out + i, wasm_f32x4_mul(silu, load(up + i)));
  }
  for (; i < n; ++i) out[i] = a::gated_silu(gate[i], up[i]);
}

TANDEM_KERNEL void gelu(const float* x, size_t n, float* out) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const v128_t v = load(x + i);
    const v128_t square = wasm_f32x4_mul(v, v);
    const v128_t cubic = wasm_f32x4_mul(square, wasm_f32x4_const_splat(0.07135481282F));
    const v128_t sum = wasm_f32x4_add(cubic, wasm_f32x4_const_splat(1.59576912161F));
    const v128_t argument = wasm_f32x4_mul(v, sum);
    store(out + i, wasm_f32x4_mul(v, logistic(argument)));
  }
  for (; i < n; ++i) out[i] = a::gelu_tanh(x[i]);
}

TANDEM_KERNEL void clamped_swiglu(const float* gate, const float* up, size_t n, float alpha,
                                  float limit, float* out) {
  // Minimum and maximum keep what is not a number.
  const v128_t most = wasm_f32x4_splat(limit);
  const v128_t least = wasm_f32x4_splat(-limit);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const v128_t g = wasm_f32x4_min(most, load(gate + i));
    const v128_t u = wasm_f32x4_max(least, wasm_f32x4_min(most, load(up + i)));
    const v128_t glu = wasm_f32x4_mul(g, logistic(wasm_f32x4_mul(g, wasm_f32x4_splat(alpha))));
    store(out + i, wasm_f32x4_mul(wasm_f32x4_add(u, wasm_f32x4_splat(1.0F)), glu));
  }
  for (; i < n; ++i) out[i] = a::clamped_swiglu(gate[i], up[i], alpha, limit);
}

TANDEM_KERNEL void weighted_sum(const float* const* rows, const float* weights, size_t count,
                                size_t n, float* out) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    v128_t sum = wasm_f32x4_mul(wasm_f32x4_splat(weights[0]), load(rows[0] + i));
    for (size_t r = 1; r < count; ++r) {
      const v128_t product = wasm_f32x4_mul(wasm_f32x4_splat(weights[r]), load(rows[r] + i));
      sum = wasm_f32x4_add(sum, product);
    }
    store(out + i, sum);
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
  const v128_t scale = wasm_f32x4_splat(factor);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const v128_t first = to_half(wasm_f32x4_mul(load(x + i), scale));
    const v128_t second = to_half(wasm_f32x4_mul(load(x + i + 4), scale));
    store(half + i, wasm_u16x8_narrow_i32x4(first, second));
  }
  for (; i < n; ++i) half[i] = a::to_half(x[i] * factor);
  return true;
}

TANDEM_KERNEL void from_boundary(const uint16_t* half, size_t n, int16_t exponent, float* x) {
  const float factor = a::power_of_two(exponent);
  const v128_t scale = wasm_f32x4_splat(factor);
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    store(x + i, wasm_f32x4_mul(from_half(wasm_u32x4_load16x4(half + i)), scale));
  }
  for (; i < n; ++i) x[i] = a::from_half(half[i]) * factor;
}

TANDEM_KERNEL int32_t rotate(int16_t* x, size_t n, int32_t exponent, const a::Rotation* rotations,
                             int32_t* scratch) {
  const size_t half = n / 2;
  v128_t most = wasm_i32x4_const_splat(0);
  size_t i = 0;
  for (; i + 4 <= half; i += 4) {
    // [cosine, sine] pairs of four rotations, apart.
    const v128_t first = load(rotations + i);
    const v128_t second = load(rotations + i + 2);
    const v128_t cosine = even_lanes(first, second);
    const v128_t sine = odd_lanes(first, second);
    const v128_t u = wasm_i32x4_load16x4(x + i);
    const v128_t v = wasm_i32x4_load16x4(x + i + half);
    // |sum| <= 2 * 32639 * 32768 < 2^31.
    const v128_t p = wasm_i32x4_sub(wasm_i32x4_mul(u, cosine), wasm_i32x4_mul(v, sine));
    const v128_t q = wasm_i32x4_add(wasm_i32x4_mul(v, cosine), wasm_i32x4_mul(u, sine));
    store(scratch + i, p);
    store(scratch + i + half, q);
    most = wasm_i32x4_max(most, wasm_i32x4_max(wasm_i32x4_abs(p), wasm_i32x4_abs(q)));
  }
  int32_t largest = reduce_max(most);
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
  // Rounding cannot leave 32 bits: |r| + 2^15 < 2^31, and the shift is at most 16.
  const v128_t round = wasm_i32x4_splat(shift == 0 ? 0 : 1 << (shift - 1));
  for (i = 0; i + 8 <= n; i += 8) {
    const v128_t first = wasm_i32x4_shr(wasm_i32x4_add(load(scratch + i), round), shift);
    const v128_t second = wasm_i32x4_shr(wasm_i32x4_add(load(scratch + i + 4), round), shift);
    store(x + i, wasm_i16x8_narrow_i32x4(first, second));
  }
  for (; i < n; ++i) x[i] = static_cast<int16_t>(a::shift_round(scratch[i], shift));
  return exponent - 15 + static_cast<int32_t>(shift);
}

}  // namespace tandem::kernels::cpu::simd128

#endif
