// The elementwise steps with AVX2: the operations of src/arithmetic in their order, eight at once,
// and its own functions for the last few elements. No fused multiply-add anywhere.
#include <bit>
#include <cmath>

#include "arithmetic/activation.h"
#include "arithmetic/delta_rule.h"
#include "arithmetic/hidden.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"
#include "kernels/cpu/avx2_vector.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

namespace a = arithmetic;

TANDEM_AVX2 inline __m256i magnitude(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

TANDEM_AVX2 inline int32_t reduce_max(__m256i x) {
  int32_t lanes[8];
  store(lanes, x);
  int32_t most = lanes[0];
  for (const int32_t lane : lanes) most = lane > most ? lane : most;
  return most;
}

TANDEM_AVX2 uint32_t max_magnitude(const float* x, size_t n) {
  __m256i most = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 8 <= n; i += 8) most = _mm256_max_epi32(most, magnitude(_mm256_loadu_ps(x + i)));
  auto bits = static_cast<uint32_t>(reduce_max(most));
  for (; i < n; ++i) bits = a::magnitude_bits(x[i]) > bits ? a::magnitude_bits(x[i]) : bits;
  return bits;
}

// 2^exponent in each lane, exponents within [-126, 127].
TANDEM_AVX2 inline __m256 power_of_two(__m256i exponent) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
}

// floor(n / d) of four lanes for an unsigned n, 2^16 <= d <= 2^17 and a quotient below 2^16: both
// are exact in binary64, and the true quotient is an integer or at least 2^-17 away from the next
// one, far more than the rounding error of 2^-37.
TANDEM_AVX2 inline __m128i divide(__m128i n, __m128i d) {
  const __m128i flipped = _mm_xor_si128(n, _mm_set1_epi32(INT32_MIN));
  const __m256d numerator =
      _mm256_add_pd(_mm256_cvtepi32_pd(flipped), _mm256_set1_pd(2147483648.0));
  return _mm256_cvttpd_epi32(_mm256_div_pd(numerator, _mm256_cvtepi32_pd(d)));
}

// arithmetic::logistic_f32.
TANDEM_AVX2 inline __m256 logistic(__m256 x) {
  const __m256 scaled =
      _mm256_mul_ps(_mm256_castsi256_ps(magnitude(x)), _mm256_set1_ps(a::kLog2e16));
  // Not a number counts as large.
  const __m256i small =
      _mm256_castps_si256(_mm256_cmp_ps(scaled, _mm256_set1_ps(4194304.0F), _CMP_LT_OQ));
  const __m256i d =
      _mm256_blendv_epi8(_mm256_set1_epi32(4194304), _mm256_cvtps_epi32(scaled), small);
  const __m256i k = _mm256_srli_epi32(d, 16);
  const __m256i m = exp2_fraction(_mm256_and_si256(d, _mm256_set1_epi32(65535)));
  // shift_round(m, k): a shift by k - 1 = -1 or by 32 and more gives 0, as it must.
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i half = _mm256_sllv_epi32(one, _mm256_sub_epi32(k, one));
  const __m256i e = _mm256_srlv_epi32(_mm256_add_epi32(m, half), k);
  const __m256i denominator = _mm256_add_epi32(e, _mm256_set1_epi32(65536));
  const __m256i negative = _mm256_srai_epi32(_mm256_castps_si256(x), 31);
  const __m256i chosen = _mm256_blendv_epi8(_mm256_set1_epi32(65536), m, negative);
  const __m256i numerator =
      _mm256_add_epi32(_mm256_slli_epi32(chosen, 15), _mm256_srli_epi32(denominator, 1));
  const __m256i s = _mm256_set_m128i(
      divide(_mm256_extracti128_si256(numerator, 1), _mm256_extracti128_si256(denominator, 1)),
      divide(_mm256_castsi256_si128(numerator), _mm256_castsi256_si128(denominator)));
  const __m256i exponent = _mm256_sub_epi32(_mm256_set1_epi32(-15), _mm256_and_si256(negative, k));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(s), power_of_two(exponent));
}

struct Sums {
  int64_t squares = 0;
  int64_t values = 0;
};

TANDEM_AVX2 inline __m256i add_wide(__m256i total, __m256i sums) {
  return _mm256_add_epi64(
      total, _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(sums)),
                              _mm256_cvtepi32_epi64(_mm256_extracti128_si256(sums, 1))));
}

TANDEM_AVX2 inline int64_t reduce_add(__m256i x) {
  int64_t lanes[4];
  store(lanes, x);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

// Exact: two squares are at most 2 * 32639^2 < 2^31.
TANDEM_AVX2 Sums sum_all(const int16_t* q, size_t n) {
  __m256i squares = _mm256_setzero_si256();
  __m256i values = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i x = load(q + i);
    squares = add_wide(squares, _mm256_madd_epi16(x, x));
    values = add_wide(values, _mm256_madd_epi16(x, _mm256_set1_epi16(1)));
  }
  Sums sums{reduce_add(squares), reduce_add(values)};
  for (; i < n; ++i) {
    sums.squares += int32_t{q[i]} * int32_t{q[i]};
    sums.values += q[i];
  }
  return sums;
}

}  // namespace

TANDEM_AVX2 void add(float* x, const float* y, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  }
  for (; i < n; ++i) x[i] += y[i];
}

TANDEM_AVX2 bool quantize(const float* x, size_t n, int16_t* values, int32_t* exponent) {
  const uint32_t bits = max_magnitude(x, n);
  const bool finite = bits < a::kInfinityBits;
  *exponent = finite ? a::quantize_exponent(bits) : a::kMinExponent - 14;
  if (!finite || bits < a::kMinBits) {
    std::memset(values, 0, n * sizeof(int16_t));
    return finite;
  }
  const float factor = a::power_of_two(-*exponent);
  const __m256 scale = _mm256_set1_ps(factor);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    store(values + i, narrow(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale)),
                             _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), scale))));
  }
  for (; i < n; ++i) values[i] = static_cast<int16_t>(a::round_to_int(x[i] * factor));
  return true;
}

TANDEM_AVX2 bool rms_norm(const float* x, const float* weight, const a::NormConstants& constants,
                          int16_t* scratch, float* y) {
  const size_t n = constants.n;
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const float mean_square = static_cast<float>(sum_all(scratch, n).squares) * constants.inverse;
  const float factor = a::norm_factor(mean_square, exponent, constants.epsilon);
  const __m256 factors = _mm256_set1_ps(factor);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 normed = _mm256_mul_ps(_mm256_loadu_ps(x + i), factors);
    _mm256_storeu_ps(y + i, _mm256_mul_ps(normed, _mm256_loadu_ps(weight + i)));
  }
  for (; i < n; ++i) {
    const float normed = x[i] * factor;
    y[i] = normed * weight[i];
  }
  return true;
}

TANDEM_AVX2 bool layer_norm(const float* x, const float* weight, const float* bias,
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
  const __m256 factors = _mm256_set1_ps(factor);
  const __m256 means = _mm256_set1_ps(mean);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 centred = _mm256_sub_ps(_mm256_loadu_ps(x + i), means);
    const __m256 normed = _mm256_mul_ps(centred, factors);
    const __m256 weighted = _mm256_mul_ps(normed, _mm256_loadu_ps(weight + i));
    _mm256_storeu_ps(y + i, _mm256_add_ps(weighted, _mm256_loadu_ps(bias + i)));
  }
  for (; i < n; ++i) {
    const float centred = x[i] - mean;
    const float normed = centred * factor;
    const float weighted = normed * weight[i];
    y[i] = weighted + bias[i];
  }
  return true;
}

TANDEM_AVX2 void gated_silu(const float* gate, const float* up, size_t n, float* out) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 g = _mm256_loadu_ps(gate + i);
    const __m256 silu = _mm256_mul_ps(g, logistic(g));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
  }
  for (; i < n; ++i) out[i] = a::gated_silu(gate[i], up[i]);
}

TANDEM_AVX2 void gelu(const float* x, size_t n, float* out) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    const __m256 square = _mm256_mul_ps(v, v);
    const __m256 cubic = _mm256_mul_ps(square, _mm256_set1_ps(0.07135481282F));
    const __m256 sum = _mm256_add_ps(cubic, _mm256_set1_ps(1.59576912161F));
    const __m256 argument = _mm256_mul_ps(v, sum);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(v, logistic(argument)));
  }
  for (; i < n; ++i) out[i] = a::gelu_tanh(x[i]);
}

TANDEM_AVX2 void gate(const float* gate, size_t n, float* x) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 factor = logistic(_mm256_loadu_ps(gate + i));
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
  }
  for (; i < n; ++i) x[i] = x[i] * a::logistic_f32(gate[i]);
}

TANDEM_AVX2 void convolve(const float* rows, size_t stride, const float* weights, uint32_t kernel,
                          size_t n, float* out) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(weights + i), _mm256_loadu_ps(rows + i));
    for (uint32_t k = 1; k < kernel; ++k) {
      sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_loadu_ps(weights + k * n + i),
                                             _mm256_loadu_ps(rows + k * stride + i)));
    }
    _mm256_storeu_ps(out + i, _mm256_mul_ps(sum, logistic(sum)));
  }
  for (; i < n; ++i) out[i] = a::convolve(rows + i, stride, weights + i, n, kernel);
}

TANDEM_AVX2 bool unit_vector(const float* x, size_t n, int16_t* scratch, float* y) {
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const auto squares = static_cast<float>(sum_all(scratch, n).squares);
  const float factor = a::norm_factor(squares, exponent, 1e-6F);
  const float to_units = a::power_of_two(a::kUnitBits);
  const float from_units = a::power_of_two(-a::kUnitBits);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 scaled = _mm256_mul_ps(
        _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(factor)), _mm256_set1_ps(to_units));
    const __m256 rounded = _mm256_round_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_ps(y + i, _mm256_mul_ps(rounded, _mm256_set1_ps(from_units)));
  }
  for (; i < n; ++i) y[i] = std::nearbyintf((x[i] * factor) * to_units) * from_units;
  return true;
}

TANDEM_AVX2 bool to_boundary(const float* x, size_t n, uint16_t* half, int16_t* exponent) {
  const uint32_t bits = max_magnitude(x, n);
  *exponent = 0;
  if (bits < a::kMinBits || bits >= a::kInfinityBits) {
    std::memset(half, 0, n * sizeof(uint16_t));
    return bits < a::kInfinityBits;
  }
  *exponent = static_cast<int16_t>(static_cast<int>(bits >> 23) - 127 - 14);
  const float factor = a::power_of_two(-*exponent);
  const __m256 scale = _mm256_set1_ps(factor);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(half + i),
        _mm256_cvtps_ph(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < n; ++i) half[i] = a::to_half(x[i] * factor);
  return true;
}

TANDEM_AVX2 void from_boundary(const uint16_t* half, size_t n, int16_t exponent, float* x) {
  const float factor = a::power_of_two(exponent);
  const __m256 scale = _mm256_set1_ps(factor);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 value =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half + i)));
    _mm256_storeu_ps(x + i, _mm256_mul_ps(value, scale));
  }
  for (; i < n; ++i) x[i] = a::from_half(half[i]) * factor;
}

TANDEM_AVX2 int32_t rotate(int16_t* x, size_t n, int32_t exponent, const a::Rotation* rotations,
                           int32_t* scratch) {
  const size_t half = n / 2;
  __m256i most = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 8 <= half; i += 8) {
    // [cosine, sine] pairs of eight rotations, apart.
    const __m256i first = load(rotations + i);
    const __m256i second = load(rotations + i + 4);
    const __m256 f = _mm256_castsi256_ps(first);
    const __m256 s = _mm256_castsi256_ps(second);
    const __m256i cosine =
        _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(f, s, 0x88)), 0xd8);
    const __m256i sine =
        _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(f, s, 0xdd)), 0xd8);
    const __m256i u =
        _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)));
    const __m256i v =
        _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i + half)));
    // |sum| <= 2 * 32639 * 32768 < 2^31.
    const __m256i p = _mm256_sub_epi32(_mm256_mullo_epi32(u, cosine), _mm256_mullo_epi32(v, sine));
    const __m256i q = _mm256_add_epi32(_mm256_mullo_epi32(v, cosine), _mm256_mullo_epi32(u, sine));
    store(scratch + i, p);
    store(scratch + i + half, q);
    most = _mm256_max_epi32(most, _mm256_max_epi32(_mm256_abs_epi32(p), _mm256_abs_epi32(q)));
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
  const __m256i round = _mm256_set1_epi32(shift == 0 ? 0 : 1 << (shift - 1));
  const __m128i count = _mm_cvtsi32_si128(static_cast<int>(shift));
  for (i = 0; i + 16 <= n; i += 16) {
    store(x + i, narrow(_mm256_sra_epi32(_mm256_add_epi32(load(scratch + i), round), count),
                        _mm256_sra_epi32(_mm256_add_epi32(load(scratch + i + 8), round), count)));
  }
  for (; i < n; ++i) x[i] = static_cast<int16_t>(a::shift_round(scratch[i], shift));
  return exponent - 15 + static_cast<int32_t>(shift);
}

}  // namespace tandem::kernels::cpu::avx2

#endif
