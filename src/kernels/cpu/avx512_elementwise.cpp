// The elementwise steps with AVX-512: the operations of src/arithmetic in their order, 16 at once.
// No fused multiply-add anywhere; tails are masked.
#include <bit>

#include "arithmetic/delta_rule.h"
#include "arithmetic/exponential.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"
#include "kernels/cpu/avx512_vector.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {
namespace {

namespace a = arithmetic;

// Lanes of the 16 from `i` on that exist.
__mmask16 lanes(size_t i, size_t n) {
  return n - i >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1U << (n - i)) - 1);
}

TANDEM_AVX512 inline __m512i magnitude(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

TANDEM_AVX512 uint32_t max_magnitude(const float* x, size_t n) {
  __m512i most = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += 16) {
    most = _mm512_max_epi32(most, magnitude(_mm512_maskz_loadu_ps(lanes(i, n), x + i)));
  }
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(most));
}

// 2^exponent in each lane, exponents within [-126, 127].
TANDEM_AVX512 inline __m512 power_of_two(__m512i exponent) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127)), 23));
}

// floor(n / d) of eight lanes for n < 2^32, 2^16 <= d <= 2^17 and a quotient below 2^16: both are
// exact in binary64, and the true quotient is an integer or at least 2^-17 away from the next one,
// far more than the rounding error of 2^-37.
TANDEM_AVX512 inline __m256i divide(__m256i n, __m256i d) {
  return _mm512_cvttpd_epu32(_mm512_div_pd(_mm512_cvtepu32_pd(n), _mm512_cvtepu32_pd(d)));
}

// arithmetic::logistic_f32.
TANDEM_AVX512 inline __m512 logistic(__m512 x) {
  const __m512 scaled =
      _mm512_mul_ps(_mm512_castsi512_ps(magnitude(x)), _mm512_set1_ps(a::kLog2e16));
  // Not a number counts as large.
  const __mmask16 small = _mm512_cmp_ps_mask(scaled, _mm512_set1_ps(4194304.0F), _CMP_LT_OQ);
  const __m512i d = _mm512_mask_cvtps_epi32(_mm512_set1_epi32(4194304), small, scaled);
  const __m512i k = _mm512_srli_epi32(d, 16);
  const __m512i m = exp2_fraction(_mm512_and_si512(d, _mm512_set1_epi32(65535)));
  // shift_round(m, k): a shift by k - 1 = -1 or by 32 and more gives 0, as it must.
  const __m512i half =
      _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_sub_epi32(k, _mm512_set1_epi32(1)));
  const __m512i e = _mm512_srlv_epi32(_mm512_add_epi32(m, half), k);
  const __m512i denominator = _mm512_add_epi32(e, _mm512_set1_epi32(65536));
  const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(x));
  const __m512i chosen = _mm512_mask_blend_epi32(negative, _mm512_set1_epi32(65536), m);
  const __m512i numerator =
      _mm512_add_epi32(_mm512_slli_epi32(chosen, 15), _mm512_srli_epi32(denominator, 1));
  const __m512i s = _mm512_inserti32x8(
      _mm512_castsi256_si512(
          divide(_mm512_castsi512_si256(numerator), _mm512_castsi512_si256(denominator))),
      divide(_mm512_extracti32x8_epi32(numerator, 1), _mm512_extracti32x8_epi32(denominator, 1)),
      1);
  const __m512i exponent =
      _mm512_sub_epi32(_mm512_set1_epi32(-15), _mm512_maskz_mov_epi32(negative, k));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(s), power_of_two(exponent));
}

// values[i] = round(x[i] * factor).
TANDEM_AVX512 void round_all(const float* x, size_t n, float factor, int16_t* values) {
  const __m512 scale = _mm512_set1_ps(factor);
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512i rounded =
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale));
    _mm256_mask_storeu_epi16(values + i, mask, _mm512_cvtepi32_epi16(rounded));
  }
}

struct Sums {
  int64_t squares;
  int64_t values;
};

// Exact: two squares are at most 2 * 32639^2 < 2^31.
TANDEM_AVX512 Sums sum_all(const int16_t* q, size_t n) {
  __m512i squares = _mm512_setzero_si512();
  __m512i sums = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += 16) {
    const __m256i x = _mm256_maskz_loadu_epi16(lanes(i, n), q + i);
    squares = _mm512_add_epi64(squares, _mm512_cvtepi32_epi64(_mm256_madd_epi16(x, x)));
    sums =
        _mm512_add_epi64(sums, _mm512_cvtepi32_epi64(_mm256_madd_epi16(x, _mm256_set1_epi16(1))));
  }
  return {_mm512_reduce_add_epi64(squares), _mm512_reduce_add_epi64(sums)};
}

}  // namespace

TANDEM_AVX512 void add(float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    _mm512_mask_storeu_ps(
        x + i, mask,
        _mm512_add_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_maskz_loadu_ps(mask, y + i)));
  }
}

bool quantize(const float* x, size_t n, int16_t* values, int32_t* exponent) {
  const uint32_t bits = max_magnitude(x, n);
  const bool finite = bits < a::kInfinityBits;
  *exponent = finite ? a::quantize_exponent(bits) : a::kMinExponent - 14;
  const bool zero = !finite || bits < a::kMinBits;
  if (zero) {
    for (size_t i = 0; i < n; ++i) values[i] = 0;
  } else {
    round_all(x, n, a::power_of_two(-*exponent), values);
  }
  return finite;
}

TANDEM_AVX512 bool rms_norm(const float* x, const float* weight, const a::NormConstants& constants,
                            int16_t* scratch, float* y) {
  const size_t n = constants.n;
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const float mean_square = static_cast<float>(sum_all(scratch, n).squares) * constants.inverse;
  const __m512 factor = _mm512_set1_ps(a::norm_factor(mean_square, exponent, constants.epsilon));
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512 normed = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor);
    _mm512_mask_storeu_ps(y + i, mask,
                          _mm512_mul_ps(normed, _mm512_maskz_loadu_ps(mask, weight + i)));
  }
  return true;
}

TANDEM_AVX512 bool layer_norm(const float* x, const float* weight, const float* bias,
                              const a::NormConstants& constants, int16_t* scratch, float* y) {
  const size_t n = constants.n;
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const Sums sums = sum_all(scratch, n);
  const int64_t variance = int64_t{constants.n} * sums.squares - sums.values * sums.values;
  const float scaled_variance = static_cast<float>(variance) * constants.inverse_square;
  const __m512 factor =
      _mm512_set1_ps(a::norm_factor(scaled_variance, exponent, constants.epsilon));
  const float unit_mean = static_cast<float>(sums.values) * constants.inverse;
  const __m512 mean = _mm512_set1_ps(unit_mean * a::power_of_two(exponent));
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512 centred = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean);
    const __m512 normed = _mm512_mul_ps(centred, factor);
    const __m512 weighted = _mm512_mul_ps(normed, _mm512_maskz_loadu_ps(mask, weight + i));
    _mm512_mask_storeu_ps(y + i, mask,
                          _mm512_add_ps(weighted, _mm512_maskz_loadu_ps(mask, bias + i)));
  }
  return true;
}

TANDEM_AVX512 void gated_silu(const float* gate, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 silu = _mm512_mul_ps(g, logistic(g));
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(mask, up + i)));
  }
}

TANDEM_AVX512 void gelu(const float* x, size_t n, float* out) {
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
    const __m512 square = _mm512_mul_ps(v, v);
    const __m512 cubic = _mm512_mul_ps(square, _mm512_set1_ps(0.07135481282F));
    const __m512 sum = _mm512_add_ps(cubic, _mm512_set1_ps(1.59576912161F));
    const __m512 argument = _mm512_mul_ps(v, sum);
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(v, logistic(argument)));
  }
}

TANDEM_AVX512 void gate(const float* gate, size_t n, float* x) {
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512 factor = logistic(_mm512_maskz_loadu_ps(mask, gate + i));
    _mm512_mask_storeu_ps(x + i, mask, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor));
  }
}

TANDEM_AVX512 void convolve(const float* rows, size_t stride, const float* weights, uint32_t kernel,
                            size_t n, float* out) {
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    __m512 sum = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, weights + i),
                               _mm512_maskz_loadu_ps(mask, rows + i));
    for (uint32_t k = 1; k < kernel; ++k) {
      sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, weights + k * n + i),
                                             _mm512_maskz_loadu_ps(mask, rows + k * stride + i)));
    }
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(sum, logistic(sum)));
  }
}

TANDEM_AVX512 bool unit_vector(const float* x, size_t n, int16_t* scratch, float* y) {
  int32_t exponent = 0;
  if (!quantize(x, n, scratch, &exponent) || exponent > a::kMaxNormExponent) return false;
  const auto squares = static_cast<float>(sum_all(scratch, n).squares);
  const __m512 factor = _mm512_set1_ps(a::norm_factor(squares, exponent, 1e-6F));
  const __m512 to_units = _mm512_set1_ps(a::power_of_two(a::kUnitBits));
  const __m512 from_units = _mm512_set1_ps(a::power_of_two(-a::kUnitBits));
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512 scaled =
        _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor), to_units);
    const __m512 rounded =
        _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(rounded, from_units));
  }
  return true;
}

TANDEM_AVX512 bool to_boundary(const float* x, size_t n, uint16_t* half, int16_t* exponent) {
  const uint32_t bits = max_magnitude(x, n);
  *exponent = 0;
  if (bits < a::kMinBits || bits >= a::kInfinityBits) {
    for (size_t i = 0; i < n; ++i) half[i] = 0;
    return bits < a::kInfinityBits;
  }
  *exponent = static_cast<int16_t>(static_cast<int>(bits >> 23) - 127 - 14);
  const __m512 factor = _mm512_set1_ps(a::power_of_two(-*exponent));
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor);
    _mm256_mask_storeu_epi16(half + i, mask, _mm512_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
  }
  return true;
}

TANDEM_AVX512 void from_boundary(const uint16_t* half, size_t n, int16_t exponent, float* x) {
  const __m512 factor = _mm512_set1_ps(a::power_of_two(exponent));
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512 value = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, half + i));
    _mm512_mask_storeu_ps(x + i, mask, _mm512_mul_ps(value, factor));
  }
}

TANDEM_AVX512 int32_t rotate(int16_t* x, size_t n, int32_t exponent, const a::Rotation* rotations,
                             int32_t* scratch) {
  const size_t half = n / 2;
  const auto* turns = reinterpret_cast<const int32_t*>(rotations);
  // Lanes of [cosine, sine] pairs of 16 rotations in two registers.
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  __m512i most = _mm512_setzero_si512();
  for (size_t i = 0; i < half; i += 16) {
    const __mmask16 mask = lanes(i, half);
    const uint64_t pairs = half - i >= 16 ? ~uint64_t{0} : (uint64_t{1} << (2 * (half - i))) - 1;
    const __m512i first = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(pairs), turns + 2 * i);
    const __m512i second =
        _mm512_maskz_loadu_epi32(static_cast<__mmask16>(pairs >> 16), turns + 2 * i + 16);
    const __m512i cosine = _mm512_permutex2var_epi32(first, even, second);
    const __m512i sine = _mm512_permutex2var_epi32(first, odd, second);
    const __m512i u = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, x + i));
    const __m512i v = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, x + i + half));
    // |sum| <= 2 * 32639 * 32768 < 2^31.
    const __m512i p = _mm512_sub_epi32(_mm512_mullo_epi32(u, cosine), _mm512_mullo_epi32(v, sine));
    const __m512i q = _mm512_add_epi32(_mm512_mullo_epi32(v, cosine), _mm512_mullo_epi32(u, sine));
    _mm512_mask_storeu_epi32(scratch + i, mask, p);
    _mm512_mask_storeu_epi32(scratch + i + half, mask, q);
    most = _mm512_max_epi32(most, _mm512_max_epi32(_mm512_abs_epi32(p), _mm512_abs_epi32(q)));
  }
  const int32_t largest = _mm512_reduce_max_epi32(most);
  unsigned shift = 0;
  while (a::shift_round(largest, shift) > a::kMaxActivation) ++shift;
  // Rounding cannot leave 32 bits: |r| + 2^15 < 2^31, and the shift is at most 16.
  const __m512i round = _mm512_set1_epi32(shift == 0 ? 0 : 1 << (shift - 1));
  const __m128i count = _mm_cvtsi32_si128(static_cast<int>(shift));
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = lanes(i, n);
    const __m512i r = _mm512_maskz_loadu_epi32(mask, scratch + i);
    const __m512i rounded = _mm512_sra_epi32(_mm512_add_epi32(r, round), count);
    _mm256_mask_storeu_epi16(x + i, mask, _mm512_cvtepi32_epi16(rounded));
  }
  return exponent - 15 + static_cast<int32_t>(shift);
}

}  // namespace tandem::kernels::cpu::avx512

#endif
