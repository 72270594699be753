// Attention with AVX2: scores of 16 positions at once, then weights, then 16 channels of values at
// once. Rows (heads and tokens that share a kv head) go in twos, so that keys and values are
// loaded once for them.
#include <climits>
#include <cstring>

#include "arithmetic/exponential.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/avx2_vector.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

namespace a = arithmetic;

// A line into the second cache, as an instruction: GCC 12 drops calls of a function that only does
// _mm_prefetch.
TANDEM_AVX2 inline void touch(const int16_t* line) {
  asm volatile("prefetcht1 %0" : : "m"(*line));
}

// 256 * high + low of eight lanes, exact in binary64, rounded once to binary32.
TANDEM_AVX2 inline __m256 round_planes(__m256i low, __m256i high) {
  const __m256d unit = _mm256_set1_pd(256.0);
  const __m128 first = _mm256_cvtpd_ps(
      _mm256_add_pd(_mm256_mul_pd(_mm256_cvtepi32_pd(_mm256_castsi256_si128(high)), unit),
                    _mm256_cvtepi32_pd(_mm256_castsi256_si128(low))));
  const __m128 second = _mm256_cvtpd_ps(
      _mm256_add_pd(_mm256_mul_pd(_mm256_cvtepi32_pd(_mm256_extracti128_si256(high, 1)), unit),
                    _mm256_cvtepi32_pd(_mm256_extracti128_si256(low, 1))));
  return _mm256_set_m128(second, first);
}

TANDEM_AVX2 inline __m256i load_exponents(const int16_t* exponents) {
  return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents)));
}

// All ones in the lanes whose bit is set.
TANDEM_AVX2 inline __m256i lane_mask(uint32_t bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each),
                            each);
}

// Scores of rows [row, row + Rows) for blocks [from, to). No plane's sum overflows: |sum| <=
// 32639 * 128 * kMaxHeadDim < 2^31.
template <int Rows>
TANDEM_AVX2 void score_rows(const CacheView& cache, const AttentionTask& task,
                            const AttentionPlan& plan, uint32_t row, uint32_t from, uint32_t to) {
  const size_t query_bytes = size_t{cache.padded_dim} * 4;
  const uint8_t* q = plan.queries + row * query_bytes;
  const __m256 constant = _mm256_set1_ps(task.constant);
  for (uint32_t block = from; block < to; ++block) {
    const int16_t* keys = plan.block_of(cache.keys, block, cache.padded_dim);
    const int16_t* ahead = plan.block_after(cache.keys, block, 1, cache.padded_dim);
    const int16_t* exponents = plan.exponents_of(cache.key_exponents, block);
    __m256i low[Rows][2];
    __m256i high[Rows][2];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      low[r][0] = low[r][1] = _mm256_setzero_si256();
      high[r][0] = high[r][1] = _mm256_setzero_si256();
    }
    for (size_t pair = 0; pair < cache.padded_dim / 2; ++pair) {
      const __m256i first = load(keys + pair * 32);
      touch(ahead + pair * 32);
      const __m256i second = load(keys + pair * 32 + 16);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const uint8_t* planes = q + r * query_bytes + pair * 8;
        const __m256i lows = broadcast4(planes);
        add_products(low[r][0], first, lows);
        add_products(low[r][1], second, lows);
        const __m256i highs = broadcast4(planes + 4);
        add_products(high[r][0], first, highs);
        add_products(high[r][1], second, highs);
      }
    }
    for (uint32_t r = 0; r < Rows; ++r) {
      const uint32_t index = row + r;
      const int32_t exponent =
          task.exponents[index / task.heads * task.exponent_stride + index % task.heads];
      for (uint32_t half = 0; half < 2; ++half) {
        const __m256i sum =
            _mm256_add_epi32(load_exponents(exponents + half * 8), _mm256_set1_epi32(exponent));
        const __m256i clamped = _mm256_max_epi32(_mm256_min_epi32(sum, _mm256_set1_epi32(100)),
                                                 _mm256_set1_epi32(-100));
        const __m256 power = _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_add_epi32(clamped, _mm256_set1_epi32(127)), 23));
        const __m256 value = _mm256_mul_ps(round_planes(low[r][half], high[r][half]),
                                           _mm256_mul_ps(constant, power));
        const __m256 bounded =
            _mm256_max_ps(_mm256_min_ps(value, _mm256_set1_ps(0x1p30F)), _mm256_set1_ps(-0x1p30F));
        store(plan.row_scores(index) + size_t{block} * 16 + half * 8, _mm256_cvtps_epi32(bounded));
      }
    }
  }
}

// x >> k, rounded, of 64-bit lanes that are not negative. Counts of -1 and of 64 and more give 0
// in both shifts, as they must.
TANDEM_AVX2 inline __m256i shift_round64(__m256i x, __m256i k) {
  const __m256i one = _mm256_set1_epi64x(1);
  return _mm256_srlv_epi64(_mm256_add_epi64(x, _mm256_sllv_epi64(one, _mm256_sub_epi64(k, one))),
                           k);
}

// Four positions' part of the denominator: 2^40 >> k, rounded, is 0 from k = 42 on.
TANDEM_AVX2 inline __m256i masses(__m128i mantissas, __m128i k) {
  return shift_round64(_mm256_slli_epi64(_mm256_cvtepu32_epi64(mantissas), 24),
                       _mm256_cvtepu32_epi64(k));
}

TANDEM_AVX2 inline int32_t reduce_min(__m256i x) {
  int32_t lanes[8];
  store(lanes, x);
  int32_t least = lanes[0];
  for (const int32_t lane : lanes) least = std::min(least, lane);
  return least;
}

// Largest score of positions that a row sees.
TANDEM_AVX2 int32_t largest_score(const AttentionTask& task, const AttentionPlan& plan,
                                  uint32_t row, uint32_t from, uint32_t to) {
  const uint32_t base = plan.first_block * a::kBlock;
  const uint32_t begin = std::max(task.begin(row / task.heads) - base, from * a::kBlock);
  const uint32_t end = std::min(task.end(row / task.heads) - base, to * a::kBlock);
  const int32_t* scores = plan.row_scores(row);
  int32_t most = INT_MIN;
  for (uint32_t j = begin; j < end; ++j) most = std::max(most, scores[j]);
  return most;
}

// Replaces a row's scores by the weights of its positions, two halves of 12 bits each.
TANDEM_AVX2 RowMass weigh_row(const CacheView& cache, const AttentionTask& task,
                              const AttentionPlan& plan, uint32_t row, int32_t most, uint32_t from,
                              uint32_t to) {
  const uint32_t begin = task.begin(row / task.heads);
  const uint32_t end = task.end(row / task.heads);
  int32_t* scores = plan.row_scores(row);
  int32_t* shifts = plan.row_shifts(row);
  const __m256i largest = _mm256_set1_epi32(most);
  const __m256i one = _mm256_set1_epi32(1);
  __m256i denominator = _mm256_setzero_si256();
  RowMass result;
  for (uint32_t block = from; block < to; ++block) {
    const uint32_t bits = plan.lanes(block, begin, end);
    const int16_t* exponents = plan.exponents_of(cache.value_exponents, block);
    int32_t* place = scores + size_t{block} * 16;
    __m256i m[2];
    __m256i shift[2];
    for (uint32_t half = 0; half < 2; ++half) {
      const __m256i mask = lane_mask(bits >> (8 * half));
      // Up to 2^31, as an unsigned number.
      const __m256i distance = _mm256_sub_epi32(largest, load(place + half * 8));
      const __m256i k = _mm256_srli_epi32(distance, 16);
      m[half] = _mm256_and_si256(
          mask, exp2_fraction(_mm256_and_si256(distance, _mm256_set1_epi32(65535))));
      denominator = _mm256_add_epi64(
          denominator, masses(_mm256_castsi256_si128(m[half]), _mm256_castsi256_si128(k)));
      denominator = _mm256_add_epi64(denominator, masses(_mm256_extracti128_si256(m[half], 1),
                                                         _mm256_extracti128_si256(k, 1)));
      shift[half] =
          _mm256_blendv_epi8(_mm256_set1_epi32(INT_MAX),
                             _mm256_sub_epi32(k, load_exponents(exponents + half * 8)), mask);
    }
    const int32_t base = reduce_min(_mm256_min_epi32(shift[0], shift[1]));
    shifts[block] = base;
    result.least = std::min(result.least, base);
    __m256i weight[2];
    for (uint32_t half = 0; half < 2; ++half) {
      // Lanes that hold no position: m = 0 and a shift that is large or, where the whole block
      // holds none, 0. INT_MAX minus a negative base wraps, so these are cut off by m's mask.
      const __m256i down = _mm256_sub_epi32(shift[half], _mm256_set1_epi32(base));
      const __m256i heavy = _mm256_andnot_si256(_mm256_cmpgt_epi32(down, _mm256_set1_epi32(23)),
                                                lane_mask(bits >> (8 * half)));
      const __m256i rounding = _mm256_sllv_epi32(one, _mm256_sub_epi32(down, one));
      weight[half] = _mm256_and_si256(
          heavy,
          _mm256_srlv_epi32(_mm256_add_epi32(_mm256_slli_epi32(m[half], 7), rounding), down));
    }
    const __m256i low = _mm256_set1_epi32(4095);
    const __m256i lows = narrow(_mm256_and_si256(weight[0], low), _mm256_and_si256(weight[1], low));
    const __m256i highs =
        narrow(_mm256_srli_epi32(weight[0], 12), _mm256_srli_epi32(weight[1], 12));
    store(place, lows);
    store(place + 8, highs);
  }
  int64_t lanes[4];
  store(lanes, denominator);
  result.denominator = static_cast<uint64_t>(lanes[0] + lanes[1] + lanes[2] + lanes[3]);
  return result;
}

// x >> down, rounded, for |x| <= 2^48 and down <= kVanishingShift: a bias makes it positive, since
// there is no arithmetic shift of 64 bits.
TANDEM_AVX2 inline __m256i shift_round_signed(__m256i x, int32_t down) {
  const int64_t round = down == 0 ? 0 : int64_t{1} << (down - 1);
  constexpr int64_t kBias = int64_t{1} << 60;
  const __m256i positive = _mm256_add_epi64(x, _mm256_set1_epi64x(kBias + round));
  return _mm256_sub_epi64(_mm256_srl_epi64(positive, _mm_cvtsi32_si128(down)),
                          _mm256_set1_epi64x(kBias >> down));
}

// The 64-bit sums of one row and eight channels, even and odd ones apart.
TANDEM_AVX2 inline void add_block(int64_t* total, __m256i low, __m256i high, int32_t down) {
  // (4096 high + low) << 6 by exact 32-bit products.
  const __m256i low_unit = _mm256_set1_epi64x(64);
  const __m256i high_unit = _mm256_set1_epi64x(4096 * 64);
  const __m256i even =
      _mm256_add_epi64(_mm256_mul_epi32(high, high_unit), _mm256_mul_epi32(low, low_unit));
  const __m256i odd = _mm256_add_epi64(_mm256_mul_epi32(_mm256_srli_epi64(high, 32), high_unit),
                                       _mm256_mul_epi32(_mm256_srli_epi64(low, 32), low_unit));
  store(total, _mm256_add_epi64(load(total), shift_round_signed(even, down)));
  store(total + 4, _mm256_add_epi64(load(total + 4), shift_round_signed(odd, down)));
}

void finish_row(const int64_t* totals, uint32_t head_dim, const RowMass& mass, float* out) {
  const a::Scaled inverse = a::reciprocal(mass.denominator);
  const float factor = static_cast<float>(inverse.mantissa) * 0x1p-40F;
  const float power = a::power_of_two(inverse.exponent + 51 - mass.least);
  for (uint32_t c = 0; c < head_dim; ++c) {
    const int64_t total = totals[c / 8 * 8 + c % 2 * 4 + c % 8 / 2];
    const float product = static_cast<float>(total) * factor;
    out[c] = product * power;
  }
}

// Weighted sums of rows [row, row + Rows). No half's block sum overflows: |sum| <=
// 4095 * 32639 * 16 < 2^31.
template <int Rows>
TANDEM_AVX2 void sum_rows(const CacheView& cache, const AttentionTask&, const AttentionPlan& plan,
                          uint32_t row, uint32_t from, uint32_t to) {
  const uint32_t dim = cache.padded_dim;
  for (uint32_t block = from; block < to; ++block) {
    int32_t down[Rows];
    bool any = false;
    const uint8_t* weights[Rows];
    for (uint32_t r = 0; r < Rows; ++r) {
      const int64_t shift = int64_t{plan.row_shifts(row + r)[block]} - plan.masses[row + r].least;
      down[r] = static_cast<int32_t>(std::min<int64_t>(shift, kVanishingShift));
      any = any || down[r] < kVanishingShift;
      weights[r] = reinterpret_cast<const uint8_t*>(plan.row_scores(row + r) + size_t{block} * 16);
    }
    if (!any) continue;
    const int16_t* values = plan.block_of(cache.values, block, dim);
    const int16_t* ahead = plan.block_after(cache.values, block, 1, dim);
    for (size_t c = 0; c < dim; c += 16) {
      __m256i low[Rows][2];
      __m256i high[Rows][2];
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        low[r][0] = low[r][1] = _mm256_setzero_si256();
        high[r][0] = high[r][1] = _mm256_setzero_si256();
      }
#pragma GCC unroll 8
      for (size_t pair = 0; pair < 8; ++pair) {
        const size_t place = (pair * dim + c) * 2;
        const __m256i first = load(values + place);
        const __m256i second = load(values + place + 16);
        touch(ahead + place);
#pragma GCC unroll 2
        for (int r = 0; r < Rows; ++r) {
          const __m256i lows = broadcast4(weights[r] + pair * 4);
          add_products(low[r][0], first, lows);
          add_products(low[r][1], second, lows);
          const __m256i highs = broadcast4(weights[r] + 32 + pair * 4);
          add_products(high[r][0], first, highs);
          add_products(high[r][1], second, highs);
        }
      }
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        int64_t* totals = plan.totals + (row + static_cast<size_t>(r)) * dim + c;
        add_block(totals, low[r][0], high[r][0], down[r]);
        add_block(totals + 8, low[r][1], high[r][1], down[r]);
      }
    }
  }
}

TANDEM_AVX2 inline void widen(const int8_t* in, __m256i multipliers, int16_t* out) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
  store(out, _mm256_mullo_epi16(wide, multipliers));
}
// Eight multipliers, each twice.
TANDEM_AVX2 inline __m256i twice(const uint8_t* multipliers) {
  const __m256i m = _mm256_add_epi32(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(multipliers))),
      _mm256_set1_epi32(1));
  return _mm256_or_si256(m, _mm256_slli_epi32(m, 16));
}

TANDEM_AVX2 void widen_keys(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                            int16_t* out) {
  __m256i m[2] = {};
  for (size_t pair = 0; pair < padded_dim / 2; ++pair) {
    if (pair % (a::kNarrowGroup / 2) == 0) {
      m[0] = twice(multipliers + pair);
      m[1] = twice(multipliers + pair + 8);
    }
    widen(in + pair * 32, m[0], out + pair * 32);
    widen(in + pair * 32 + 16, m[1], out + pair * 32 + 16);
  }
}

TANDEM_AVX2 void widen_values(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                              int16_t* out) {
  for (size_t pair = 0; pair < 8; ++pair) {
    for (size_t c = 0; c < padded_dim; c += 8) {
      const uint8_t* m = multipliers + c / a::kNarrowGroup * 16 + pair * 2;
      const size_t place = (pair * padded_dim + c) * 2;
      widen(in + place, _mm256_set1_epi32((m[0] + 1) | (m[1] + 1) << 16), out + place);
    }
  }
}

constexpr AttentionSteps kSteps = {2,
                                   {score_rows<1>, score_rows<2>, nullptr, nullptr},
                                   largest_score,
                                   weigh_row,
                                   {sum_rows<1>, sum_rows<2>, nullptr, nullptr},
                                   finish_row,
                                   widen_keys,
                                   widen_values};

}  // namespace

bool attention(const CacheView& cache, const AttentionTask& task, ThreadPool* pool,
               AttentionScratch& scratch, float* out) {
  return run_attention(kSteps, cache, task, pool, scratch, out);
}

}  // namespace tandem::kernels::cpu::avx2

#endif
