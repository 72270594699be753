// Attention with AVX-512 VNNI: scores of 16 positions at once, then weights, then 16 channels of
// values at once. Rows (heads and tokens that share a kv head) go up to four together, so that keys
// and values are loaded once for them.
#include <climits>
#include <cstring>

#include "arithmetic/exponential.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/avx512_vector.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {
namespace {

namespace a = arithmetic;

// 256 * high + low of 16 lanes, rounded once to binary32.
TANDEM_AVX512 inline __m512 round_planes(__m512i low, __m512i high) {
  const __m256 first =
      _mm512_cvtepi64_ps(combine_planes(_mm512_castsi512_si256(low), _mm512_castsi512_si256(high)));
  const __m256 second = _mm512_cvtepi64_ps(
      combine_planes(_mm512_extracti64x4_epi64(low, 1), _mm512_extracti64x4_epi64(high, 1)));
  return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
}

// Scores of rows [row, row + Rows) for blocks [from, to). No plane's sum overflows: |sum| <=
// 32639 * 128 * kMaxHeadDim < 2^31.
template <int Rows>
TANDEM_AVX512 void score_rows(const CacheView& cache, const AttentionTask& task,
                              const AttentionPlan& plan, uint32_t row, uint32_t from, uint32_t to) {
  const size_t query_bytes = size_t{cache.padded_dim} * 4;
  const uint8_t* q = plan.queries + row * query_bytes;
  int32_t query_exponents[Rows];
  for (uint32_t r = 0; r < Rows; ++r) {
    const uint32_t t = (row + r) / task.heads;
    query_exponents[r] = task.exponents[t * task.exponent_stride + (row + r) % task.heads];
  }
  const __m512 constant = _mm512_set1_ps(task.constant);
  const __m512i bias = _mm512_set1_epi32(127);
  for (uint32_t block = from; block < to; ++block) {
    const int16_t* keys =
        AttentionPlan::block_of(cache.keys, plan.first_block + block, cache.padded_dim);
    __m512i low[Rows];
    __m512i high[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      low[r] = _mm512_setzero_si512();
      high[r] = _mm512_setzero_si512();
    }
    // The next block follows this one in its chunk.
    const int16_t* next = keys + size_t{16} * cache.padded_dim;
    for (size_t pair = 0; pair < cache.padded_dim / 2; ++pair) {
      const __m512i key = _mm512_loadu_si512(keys + pair * 32);
      touch(reinterpret_cast<const uint8_t*>(next + pair * 32));
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        add_pairs(low[r], key, q + r * query_bytes + pair * 8);
        add_pairs(high[r], key, q + r * query_bytes + pair * 8 + 4);
      }
    }
    const __m512i exponents =
        _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(
            AttentionPlan::exponents_of(cache.key_exponents, plan.first_block + block))));
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m512i sum = _mm512_add_epi32(exponents, _mm512_set1_epi32(query_exponents[r]));
      const __m512i clamped =
          _mm512_max_epi32(_mm512_min_epi32(sum, _mm512_set1_epi32(100)), _mm512_set1_epi32(-100));
      const __m512 power =
          _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(clamped, bias), 23));
      const __m512 value =
          _mm512_mul_ps(round_planes(low[r], high[r]), _mm512_mul_ps(constant, power));
      const __m512 bounded =
          _mm512_max_ps(_mm512_min_ps(value, _mm512_set1_ps(0x1p30F)), _mm512_set1_ps(-0x1p30F));
      _mm512_storeu_si512(plan.row_scores(row + static_cast<uint32_t>(r)) + size_t{block} * 16,
                          _mm512_cvtps_epi32(bounded));
    }
  }
}

// x >> k, rounded, of 64-bit lanes that are not negative. Counts of -1 and of 64 and more give 0
// in both shifts, as they must.
TANDEM_AVX512 inline __m512i shift_round64(__m512i x, __m512i k) {
  const __m512i one = _mm512_set1_epi64(1);
  return _mm512_srlv_epi64(_mm512_add_epi64(x, _mm512_sllv_epi64(one, _mm512_sub_epi64(k, one))),
                           k);
}

// Replaces a row's scores by the weights of its positions, two halves of 12 bits each.
TANDEM_AVX512 RowMass weigh_row(const CacheView& cache, const AttentionTask& task,
                                const AttentionPlan& plan, uint32_t row) {
  const uint32_t begin = task.begin(row / task.heads);
  const uint32_t end = task.end(row / task.heads);
  const int32_t sink = task.sink(row % task.heads);
  int32_t* scores = plan.row_scores(row);
  int32_t* shifts = plan.row_shifts(row);
  __m512i most = _mm512_set1_epi32(sink);
  for (uint32_t block = 0; block < plan.blocks; ++block) {
    const auto mask = static_cast<__mmask16>(plan.lanes(block, begin, end));
    most = _mm512_mask_max_epi32(most, mask, most, _mm512_loadu_si512(scores + size_t{block} * 16));
  }
  const int32_t top = _mm512_reduce_max_epi32(most);
  const __m512i largest = _mm512_set1_epi32(top);
  __m512i denominator = _mm512_setzero_si512();
  RowMass result;
  for (uint32_t block = 0; block < plan.blocks; ++block) {
    const auto mask = static_cast<__mmask16>(plan.lanes(block, begin, end));
    int32_t* place = scores + size_t{block} * 16;
    // Up to 2^31, as an unsigned number.
    const __m512i distance = _mm512_sub_epi32(largest, _mm512_loadu_si512(place));
    const __m512i k = _mm512_srli_epi32(distance, 16);
    const __m512i m = _mm512_maskz_mov_epi32(
        mask, exp2_fraction(_mm512_and_si512(distance, _mm512_set1_epi32(65535))));
    // 2^40 >> k, rounded, is 0 from k = 42 on.
    const __m512i first = _mm512_slli_epi64(_mm512_cvtepu32_epi64(_mm512_castsi512_si256(m)), 24);
    const __m512i second =
        _mm512_slli_epi64(_mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(m, 1)), 24);
    denominator = _mm512_add_epi64(
        denominator, shift_round64(first, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(k))));
    denominator = _mm512_add_epi64(
        denominator, shift_round64(second, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(k, 1))));
    const __m512i exponents =
        _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(
            AttentionPlan::exponents_of(cache.value_exponents, plan.first_block + block))));
    const __m512i shift = _mm512_sub_epi32(k, exponents);
    const int32_t base = _mm512_mask_reduce_min_epi32(mask, shift);
    shifts[block] = base;
    result.least = std::min(result.least, base);
    const __m512i down = _mm512_sub_epi32(shift, _mm512_set1_epi32(base));
    const __mmask16 heavy = _mm512_mask_cmplt_epi32_mask(mask, down, _mm512_set1_epi32(24));
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i half = _mm512_sllv_epi32(one, _mm512_sub_epi32(down, one));
    const __m512i weight =
        _mm512_maskz_srlv_epi32(heavy, _mm512_add_epi32(_mm512_slli_epi32(m, 7), half), down);
    auto* halves = reinterpret_cast<__m256i*>(place);
    _mm256_storeu_si256(halves,
                        _mm512_cvtepi32_epi16(_mm512_and_si512(weight, _mm512_set1_epi32(4095))));
    _mm256_storeu_si256(halves + 1, _mm512_cvtepi32_epi16(_mm512_srli_epi32(weight, 12)));
  }
  result.denominator =
      static_cast<uint64_t>(_mm512_reduce_add_epi64(denominator)) + sink_mass(top, sink);
  return result;
}

// The 64-bit sums of one row and 16 channels, even and odd ones apart.
TANDEM_AVX512 inline void add_block(int64_t* total, __m512i low, __m512i high, int32_t down) {
  // (4096 high + low) << 6 by exact 32-bit products, then the rounded shift.
  const __m512i low_unit = _mm512_set1_epi64(64);
  const __m512i high_unit = _mm512_set1_epi64(4096 * 64);
  const __m512i even =
      _mm512_add_epi64(_mm512_mul_epi32(high, high_unit), _mm512_mul_epi32(low, low_unit));
  const __m512i odd = _mm512_add_epi64(_mm512_mul_epi32(_mm512_srli_epi64(high, 32), high_unit),
                                       _mm512_mul_epi32(_mm512_srli_epi64(low, 32), low_unit));
  const __m512i round = _mm512_set1_epi64(down == 0 ? 0 : int64_t{1} << (down - 1));
  const __m128i count = _mm_cvtsi32_si128(down);
  const __m512i even_total = _mm512_loadu_si512(total);
  const __m512i odd_total = _mm512_loadu_si512(total + 8);
  _mm512_storeu_si512(
      total, _mm512_add_epi64(even_total, _mm512_sra_epi64(_mm512_add_epi64(even, round), count)));
  _mm512_storeu_si512(
      total + 8,
      _mm512_add_epi64(odd_total, _mm512_sra_epi64(_mm512_add_epi64(odd, round), count)));
}

// One row's sums as floats.
TANDEM_AVX512 void finish_row(const int64_t* totals, uint32_t head_dim, const RowMass& mass,
                              float* out) {
  const a::Scaled inverse = a::reciprocal(mass.denominator);
  const __m512 factor = _mm512_set1_ps(static_cast<float>(inverse.mantissa) * 0x1p-40F);
  const __m512 power = _mm512_set1_ps(a::power_of_two(inverse.exponent + 51 - mass.least));
  const __m512i order = _mm512_set_epi32(15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
  for (uint32_t c = 0; c < head_dim; c += 16) {
    const __m256 even = _mm512_cvtepi64_ps(_mm512_loadu_si512(totals + c));
    const __m256 odd = _mm512_cvtepi64_ps(_mm512_loadu_si512(totals + c + 8));
    const __m512 sums =
        _mm512_permutexvar_ps(order, _mm512_insertf32x8(_mm512_castps256_ps512(even), odd, 1));
    const uint32_t left = head_dim - c;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffU : (1U << left) - 1);
    _mm512_mask_storeu_ps(out + c, mask, _mm512_mul_ps(_mm512_mul_ps(sums, factor), power));
  }
}

// Weighted sums of rows [row, row + Rows). No half's block sum overflows: |sum| <=
// 4095 * 32639 * 16 < 2^31.
template <int Rows>
TANDEM_AVX512 void sum_rows(const CacheView& cache, const AttentionTask&, const AttentionPlan& plan,
                            uint32_t row, uint32_t from, uint32_t to) {
  const uint32_t dim = cache.padded_dim;
  for (uint32_t block = from; block < to; ++block) {
    int32_t down[Rows];
    bool any = false;
    const uint8_t* weights[Rows];
    for (uint32_t r = 0; r < Rows; ++r) {
      // Exponents keep both within 2^16, except in blocks that the row does not see: INT_MAX.
      const int64_t shift = int64_t{plan.row_shifts(row + r)[block]} - plan.masses[row + r].least;
      down[r] = static_cast<int32_t>(std::min<int64_t>(shift, kVanishingShift));
      any = any || down[r] < kVanishingShift;
      weights[r] = reinterpret_cast<const uint8_t*>(plan.row_scores(row + r) + size_t{block} * 16);
    }
    if (!any) continue;
    const int16_t* values = AttentionPlan::block_of(cache.values, plan.first_block + block, dim);
    const int16_t* next = values + size_t{16} * dim;
    for (size_t c = 0; c < dim; c += 16) {
      __m512i low[Rows];
      __m512i high[Rows];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        low[r] = _mm512_setzero_si512();
        high[r] = _mm512_setzero_si512();
      }
#pragma GCC unroll 8
      for (size_t pair = 0; pair < 8; ++pair) {
        const __m512i value = _mm512_loadu_si512(values + pair * dim * 2 + c * 2);
        touch(reinterpret_cast<const uint8_t*>(next + pair * dim * 2 + c * 2));
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          add_pairs(low[r], value, weights[r] + pair * 4);
          add_pairs(high[r], value, weights[r] + 32 + pair * 4);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        add_block(plan.totals + (row + static_cast<size_t>(r)) * dim + c, low[r], high[r], down[r]);
      }
    }
  }
}

constexpr AttentionSteps kSteps = {4,
                                   {score_rows<1>, score_rows<2>, score_rows<3>, score_rows<4>},
                                   weigh_row,
                                   {sum_rows<1>, sum_rows<2>, sum_rows<3>, sum_rows<4>},
                                   finish_row};

}  // namespace

bool attention(const CacheView& cache, const AttentionTask& task, AttentionScratch& scratch,
               float* out) {
  return run_attention(kSteps, cache, task, scratch, out);
}

}  // namespace tandem::kernels::cpu::avx512

#endif
