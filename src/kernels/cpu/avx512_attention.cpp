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

// Sums stay in registers only where no call takes their address.
#define TANDEM_AVX512_INLINE TANDEM_AVX512 __attribute__((always_inline)) inline

// 256 * high + low of 16 lanes, rounded once to binary32.
TANDEM_AVX512 inline __m512 round_planes(__m512i low, __m512i high) {
  const __m256 first =
      _mm512_cvtepi64_ps(combine_planes(_mm512_castsi512_si256(low), _mm512_castsi512_si256(high)));
  const __m256 second = _mm512_cvtepi64_ps(
      combine_planes(_mm512_extracti64x4_epi64(low, 1), _mm512_extracti64x4_epi64(high, 1)));
  return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
}

// Sums of 16 channels or positions with the low and the high halves of what they are multiplied by.
// Named, one for each row: of an array GCC 12 keeps a copy in memory.
struct Halves {
  __m512i low;
  __m512i high;
};

// The same for two vectors that lie side by side, of channels or of positions.
struct Sums {
  Halves first;
  Halves second;
};

TANDEM_AVX512_INLINE void start(__m512i low, __m512i high, Sums& sums) {
  sums.first = {low, high};
  sums.second = {low, high};
}
// Adds products of pairs at two vectors with a row's pairs: one load of these does for both.
template <int Vectors>
TANDEM_AVX512_INLINE void add_two(Sums& sums, __m512i first, __m512i second, const uint8_t* low,
                                  const uint8_t* high) {
  if constexpr (Vectors == 1) {
    add_pairs(sums.first.low, first, low);
    add_pairs(sums.first.high, first, high);
  } else {
    const __m512i l = broadcast4(low);
    const __m512i h = broadcast4(high);
    add_pairs(sums.first.low, first, l);
    add_pairs(sums.second.low, second, l);
    add_pairs(sums.first.high, first, h);
    add_pairs(sums.second.high, second, h);
  }
}
// A row's scores of one block from the sums of its planes.
TANDEM_AVX512_INLINE void store_block(const CacheView& cache, const AttentionTask& task,
                                      const AttentionPlan& plan, uint32_t row, uint32_t block,
                                      const Halves& sums) {
  const int32_t exponent =
      task.exponents[row / task.heads * task.exponent_stride + row % task.heads];
  const __m512i exponents = _mm512_cvtepi16_epi32(_mm256_loadu_si256(
      reinterpret_cast<const __m256i*>(plan.exponents_of(cache.key_exponents, block))));
  const __m512i sum = _mm512_add_epi32(exponents, _mm512_set1_epi32(exponent));
  const __m512i clamped =
      _mm512_max_epi32(_mm512_min_epi32(sum, _mm512_set1_epi32(100)), _mm512_set1_epi32(-100));
  const __m512 power =
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(clamped, _mm512_set1_epi32(127)), 23));
  const __m512 value = _mm512_mul_ps(round_planes(sums.low, sums.high),
                                     _mm512_mul_ps(_mm512_set1_ps(task.constant), power));
  const __m512 bounded =
      _mm512_max_ps(_mm512_min_ps(value, _mm512_set1_ps(0x1p30F)), _mm512_set1_ps(-0x1p30F));
  _mm512_storeu_si512(plan.row_scores(row) + size_t{block} * 16, _mm512_cvtps_epi32(bounded));
}

template <int Vectors>
TANDEM_AVX512_INLINE void store_scores(const CacheView& cache, const AttentionTask& task,
                                       const AttentionPlan& plan, uint32_t row, uint32_t block,
                                       const Sums& sums) {
  store_block(cache, task, plan, row, block, sums.first);
  if constexpr (Vectors == 2) store_block(cache, task, plan, row, block + 1, sums.second);
}

// Scores of rows [row, row + Rows) for one block or two that follow each other. No plane's sum
// overflows: |sum| <= 32639 * 128 * kMaxHeadDim < 2^31.
template <int Rows, int Vectors>
TANDEM_AVX512_INLINE void score_blocks(const CacheView& cache, const AttentionTask& task,
                                       const AttentionPlan& plan, uint32_t row, uint32_t block) {
  const size_t dim = cache.padded_dim;
  const size_t query_bytes = dim * 4;
  const uint8_t* q = plan.queries + row * query_bytes;
  const int16_t* keys = plan.block_of(cache.keys, block, cache.padded_dim);
  const int16_t* others =
      Vectors == 2 ? plan.block_of(cache.keys, block + 1, cache.padded_dim) : keys;
  const __m512i zero = _mm512_setzero_si512();
  Sums s0;
  Sums s1;
  Sums s2;
  Sums s3;
  start(zero, zero, s0);
  if constexpr (Rows > 1) start(zero, zero, s1);
  if constexpr (Rows > 2) start(zero, zero, s2);
  if constexpr (Rows > 3) start(zero, zero, s3);
  const int16_t* ahead = plan.block_after(cache.keys, block, Vectors, cache.padded_dim);
  const int16_t* ahead_too =
      Vectors == 2 ? plan.block_after(cache.keys, block + 1, Vectors, cache.padded_dim) : ahead;
  for (size_t pair = 0; pair < dim / 2; ++pair) {
    const __m512i first = _mm512_loadu_si512(keys + pair * 32);
    __m512i second = first;
    touch(reinterpret_cast<const uint8_t*>(ahead + pair * 32));
    if constexpr (Vectors == 2) {
      second = _mm512_loadu_si512(others + pair * 32);
      touch(reinterpret_cast<const uint8_t*>(ahead_too + pair * 32));
    }
    const uint8_t* planes = q + pair * 8;
    add_two<Vectors>(s0, first, second, planes, planes + 4);
    if constexpr (Rows > 1) {
      add_two<Vectors>(s1, first, second, planes + query_bytes, planes + query_bytes + 4);
    }
    if constexpr (Rows > 2) {
      add_two<Vectors>(s2, first, second, planes + 2 * query_bytes, planes + 2 * query_bytes + 4);
    }
    if constexpr (Rows > 3) {
      add_two<Vectors>(s3, first, second, planes + 3 * query_bytes, planes + 3 * query_bytes + 4);
    }
  }
  store_scores<Vectors>(cache, task, plan, row, block, s0);
  if constexpr (Rows > 1) store_scores<Vectors>(cache, task, plan, row + 1, block, s1);
  if constexpr (Rows > 2) store_scores<Vectors>(cache, task, plan, row + 2, block, s2);
  if constexpr (Rows > 3) store_scores<Vectors>(cache, task, plan, row + 3, block, s3);
}

template <int Rows>
TANDEM_AVX512 void score_rows(const CacheView& cache, const AttentionTask& task,
                              const AttentionPlan& plan, uint32_t row, uint32_t from, uint32_t to) {
  uint32_t block = from;
  for (; block + 2 <= to; block += 2) score_blocks<Rows, 2>(cache, task, plan, row, block);
  if (block < to) score_blocks<Rows, 1>(cache, task, plan, row, block);
}

// x >> k, rounded, of 64-bit lanes that are not negative. Counts of -1 and of 64 and more give 0
// in both shifts, as they must.
TANDEM_AVX512 inline __m512i shift_round64(__m512i x, __m512i k) {
  const __m512i one = _mm512_set1_epi64(1);
  return _mm512_srlv_epi64(_mm512_add_epi64(x, _mm512_sllv_epi64(one, _mm512_sub_epi64(k, one))),
                           k);
}

// Largest score of positions that a row sees.
TANDEM_AVX512 int32_t largest_score(const AttentionTask& task, const AttentionPlan& plan,
                                    uint32_t row, uint32_t from, uint32_t to) {
  const uint32_t begin = task.begin(row / task.heads);
  const uint32_t end = task.end(row / task.heads);
  const int32_t* scores = plan.row_scores(row);
  __m512i most = _mm512_set1_epi32(INT_MIN);
  for (uint32_t block = from; block < to; ++block) {
    const auto mask = static_cast<__mmask16>(plan.lanes(block, begin, end));
    most = _mm512_mask_max_epi32(most, mask, most, _mm512_loadu_si512(scores + size_t{block} * 16));
  }
  return _mm512_reduce_max_epi32(most);
}

// Replaces a row's scores by the weights of its positions, two halves of 12 bits each.
TANDEM_AVX512 RowMass weigh_row(const CacheView& cache, const AttentionTask& task,
                                const AttentionPlan& plan, uint32_t row, int32_t most,
                                uint32_t from, uint32_t to) {
  const uint32_t begin = task.begin(row / task.heads);
  const uint32_t end = task.end(row / task.heads);
  int32_t* scores = plan.row_scores(row);
  int32_t* shifts = plan.row_shifts(row);
  const __m512i largest = _mm512_set1_epi32(most);
  __m512i denominator = _mm512_setzero_si512();
  RowMass result;
  for (uint32_t block = from; block < to; ++block) {
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
    const __m512i exponents = _mm512_cvtepi16_epi32(_mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(plan.exponents_of(cache.value_exponents, block))));
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
  result.denominator = static_cast<uint64_t>(_mm512_reduce_add_epi64(denominator));
  return result;
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

// How a block's sums of one row, low and high halves of its weights, join its total.
// Left without initial values, since calls have room for many and use few.
struct Join {
  int32_t down;
  // Of sums that start at 2^31 to be unsigned; scales of 0 where the block adds nothing.
  int32_t start_low;
  int32_t right;  // of low
  uint64_t scale_low;
  uint64_t scale_high;
};

// Up to this shift (4096 high + low) << 6 >> down is (high << (18 - down)) + (low, shifted and
// rounded in 32 bits): high needs no rounding.
constexpr int32_t kExactHigh = 18;

inline Join make_join(int32_t down) {
  if (down > kExactHigh) return {down, INT_MIN, 0, 0, 0};
  const int32_t right = std::max(down - 6, 0);
  return {down, INT_MIN + (right > 0 ? 1 << (right - 1) : 0), right,
          uint64_t{1} << std::max(6 - down, 0), uint64_t{1} << (kExactHigh - down)};
}

// What starting at 2^31 adds to a total, modulo 2^64.
inline uint64_t excess(const Join& join) {
  if (join.scale_low == 0) return 0;
  return (uint64_t{1} << (37 - join.down)) + (uint64_t{1} << (49 - join.down));
}

// A row's totals of eight even and eight odd channels.
struct Totals {
  __m512i even;
  __m512i odd;
};

// total += the sums by 32-bit products.
TANDEM_AVX512_INLINE void add_unsigned(const Join& join, const Halves& sums, Totals& totals) {
  const __m512i scale_low = _mm512_set1_epi64(static_cast<int64_t>(join.scale_low));
  const __m512i scale_high = _mm512_set1_epi64(static_cast<int64_t>(join.scale_high));
  const __m512i rounded = _mm512_srl_epi32(sums.low, _mm_cvtsi32_si128(join.right));
  const __m512i odd = _mm512_srli_epi64(rounded, 32);
  const __m512i high_odd = _mm512_srli_epi64(sums.high, 32);
  totals.even = _mm512_add_epi64(totals.even, _mm512_mul_epu32(rounded, scale_low));
  totals.odd = _mm512_add_epi64(totals.odd, _mm512_mul_epu32(odd, scale_low));
  totals.even = _mm512_add_epi64(totals.even, _mm512_mul_epu32(sums.high, scale_high));
  totals.odd = _mm512_add_epi64(totals.odd, _mm512_mul_epu32(high_odd, scale_high));
}

// The same for signed sums and any shift: (4096 high + low) << 6 in 64 bits, then shifted.
TANDEM_AVX512_INLINE void add_signed(const Join& join, const Halves& sums, Totals& totals) {
  const __m512i low_unit = _mm512_set1_epi64(64);
  const __m512i high_unit = _mm512_set1_epi64(4096 * 64);
  const __m512i round = _mm512_set1_epi64(join.down == 0 ? 0 : int64_t{1} << (join.down - 1));
  const __m128i count = _mm_cvtsi32_si128(join.down);
  const __m512i even = _mm512_add_epi64(_mm512_mul_epi32(sums.high, high_unit),
                                        _mm512_mul_epi32(sums.low, low_unit));
  const __m512i odd =
      _mm512_add_epi64(_mm512_mul_epi32(_mm512_srli_epi64(sums.high, 32), high_unit),
                       _mm512_mul_epi32(_mm512_srli_epi64(sums.low, 32), low_unit));
  totals.even =
      _mm512_add_epi64(totals.even, _mm512_sra_epi64(_mm512_add_epi64(even, round), count));
  totals.odd = _mm512_add_epi64(totals.odd, _mm512_sra_epi64(_mm512_add_epi64(odd, round), count));
}

template <bool Unsigned>
TANDEM_AVX512_INLINE void join_vector(const Join& join, const Halves& sums, int64_t* place) {
  Totals totals = {_mm512_loadu_si512(place), _mm512_loadu_si512(place + 8)};
  if constexpr (Unsigned) {
    add_unsigned(join, sums, totals);
  } else {
    add_signed(join, sums, totals);
  }
  _mm512_storeu_si512(place, totals.even);
  _mm512_storeu_si512(place + 8, totals.odd);
}
template <int Vectors, bool Unsigned>
TANDEM_AVX512_INLINE void join_block(const Join& join, const Sums& sums, int64_t* place) {
  join_vector<Unsigned>(join, sums.first, place);
  if constexpr (Vectors == 2) join_vector<Unsigned>(join, sums.second, place + 16);
}

// Blocks of a call that add something to one of its rows.
template <int Rows>
struct Blocks {
  uint32_t count;
  uint32_t index[kMostBlocksAtOnce];
  Join joins[kMostBlocksAtOnce][Rows];
};

// Weighted sums of rows [row, row + Rows) for 16 or 32 channels from c on. No half's block sum
// overflows: |sum| <= 4095 * 32639 * 16 = 2^31 - 8,975,168.
template <int Rows, int Vectors, bool Unsigned>
TANDEM_AVX512_INLINE void sum_channels(const AttentionPlan& plan, uint32_t row, const Join* join,
                                       const uint8_t* weights, const int16_t* values,
                                       const int16_t* next, size_t dim, size_t c) {
  const size_t row_bytes = size_t{plan.stride()} * 64;
  const __m512i high = Unsigned ? _mm512_set1_epi32(INT_MIN) : _mm512_setzero_si512();
  const auto low = [join](int r) { return Unsigned ? join[r].start_low : 0; };
  Sums s0;
  Sums s1;
  Sums s2;
  Sums s3;
  start(_mm512_set1_epi32(low(0)), high, s0);
  if constexpr (Rows > 1) start(_mm512_set1_epi32(low(1)), high, s1);
  if constexpr (Rows > 2) start(_mm512_set1_epi32(low(2)), high, s2);
  if constexpr (Rows > 3) start(_mm512_set1_epi32(low(3)), high, s3);
  const uint8_t* w1 = weights + row_bytes;
  const uint8_t* w2 = w1 + row_bytes;
  const uint8_t* w3 = w2 + row_bytes;
  const int16_t* two = values + c * 2;
  const auto* ahead = reinterpret_cast<const uint8_t*>(next + c * 2);
#pragma GCC unroll 8
  for (size_t pair = 0; pair < 8; ++pair) {
    const __m512i first = _mm512_loadu_si512(two);
    __m512i second = first;
    touch(ahead);
    if constexpr (Vectors == 2) {
      second = _mm512_loadu_si512(two + 32);
      touch(ahead + 64);
    }
    two += dim * 2;
    ahead += dim * 4;
    const size_t w = pair * 4;
    add_two<Vectors>(s0, first, second, weights + w, weights + w + 32);
    if constexpr (Rows > 1) add_two<Vectors>(s1, first, second, w1 + w, w1 + w + 32);
    if constexpr (Rows > 2) add_two<Vectors>(s2, first, second, w2 + w, w2 + w + 32);
    if constexpr (Rows > 3) add_two<Vectors>(s3, first, second, w3 + w, w3 + w + 32);
  }
  int64_t* totals = plan.totals + size_t{row} * dim + c;
  join_block<Vectors, Unsigned>(join[0], s0, totals);
  if constexpr (Rows > 1) join_block<Vectors, Unsigned>(join[1], s1, totals + dim);
  if constexpr (Rows > 2) join_block<Vectors, Unsigned>(join[2], s2, totals + 2 * dim);
  if constexpr (Rows > 3) join_block<Vectors, Unsigned>(join[3], s3, totals + 3 * dim);
}

template <int Rows, bool Unsigned>
TANDEM_AVX512 void sum_blocks(const CacheView& cache, const AttentionPlan& plan, uint32_t row,
                              const Blocks<Rows>& blocks) {
  const size_t dim = cache.padded_dim;
  const auto* row_weights = reinterpret_cast<const uint8_t*>(plan.row_scores(row));
  for (uint32_t i = 0; i < blocks.count; ++i) {
    const Join* join = blocks.joins[i];
    const uint8_t* weights = row_weights + size_t{blocks.index[i]} * 64;
    const int16_t* values = plan.block_of(cache.values, blocks.index[i], cache.padded_dim);
    const int16_t* next = plan.block_after(cache.values, blocks.index[i], 1, cache.padded_dim);
    size_t c = 0;
    for (; c + 32 <= dim; c += 32) {
      sum_channels<Rows, 2, Unsigned>(plan, row, join, weights, values, next, dim, c);
    }
    if (c < dim) sum_channels<Rows, 1, Unsigned>(plan, row, join, weights, values, next, dim, c);
  }
}

template <int Rows>
TANDEM_AVX512 void sum_rows(const CacheView& cache, const AttentionTask&, const AttentionPlan& plan,
                            uint32_t row, uint32_t from, uint32_t to) {
  Blocks<Rows> near;
  Blocks<Rows> far;  // with a shift above kExactHigh, which must not be unsigned
  near.count = far.count = 0;
  uint64_t bias[Rows] = {};
  for (uint32_t block = from; block < to; ++block) {
    Join joins[Rows];
    bool any = false;
    bool exact = true;
    for (uint32_t r = 0; r < Rows; ++r) {
      // Exponents keep both within 2^16, except in blocks that the row does not see: INT_MAX.
      const int64_t shift = int64_t{plan.row_shifts(row + r)[block]} - plan.masses[row + r].least;
      joins[r] = make_join(static_cast<int32_t>(std::min<int64_t>(shift, kVanishingShift)));
      any = any || joins[r].down < kVanishingShift;
      exact = exact && (joins[r].down <= kExactHigh || joins[r].down == kVanishingShift);
    }
    if (!any) continue;
    Blocks<Rows>& blocks = exact ? near : far;
    for (uint32_t r = 0; r < Rows; ++r) {
      blocks.joins[blocks.count][r] = joins[r];
      if (exact) bias[r] += excess(joins[r]);
    }
    blocks.index[blocks.count++] = block;
  }
  if (near.count > 0) {
    const uint32_t dim = cache.padded_dim;
    for (uint32_t r = 0; r < Rows; ++r) {
      int64_t* totals = plan.totals + (size_t{row} + r) * dim;
      const __m512i less = _mm512_set1_epi64(static_cast<int64_t>(bias[r]));
      for (size_t c = 0; c < dim; c += 8) {
        _mm512_storeu_si512(totals + c, _mm512_sub_epi64(_mm512_loadu_si512(totals + c), less));
      }
    }
    sum_blocks<Rows, true>(cache, plan, row, near);
  }
  if (far.count > 0) sum_blocks<Rows, false>(cache, plan, row, far);
}

// 16 multipliers, each twice.
TANDEM_AVX512 inline __m512i twice(const uint8_t* multipliers) {
  const __m512i m = _mm512_add_epi32(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(multipliers))),
      _mm512_set1_epi32(1));
  return _mm512_or_si512(m, _mm512_slli_epi32(m, 16));
}
TANDEM_AVX512 inline void widen(const int8_t* in, __m512i multipliers, int16_t* out) {
  const __m512i wide =
      _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
  _mm512_storeu_si512(out, _mm512_mullo_epi16(wide, multipliers));
}

TANDEM_AVX512 void widen_keys(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                              int16_t* out) {
  __m512i m = _mm512_setzero_si512();
  for (size_t pair = 0; pair < padded_dim / 2; ++pair) {
    if (pair % (a::kNarrowGroup / 2) == 0) m = twice(multipliers + pair);
    touch(reinterpret_cast<const uint8_t*>(in) + pair * 32 + size_t{padded_dim} * 32);
    widen(in + pair * 32, m, out + pair * 32);
  }
}

TANDEM_AVX512 void widen_values(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                                int16_t* out) {
  for (size_t pair = 0; pair < 8; ++pair) {
    for (size_t c = 0; c < padded_dim; c += 16) {
      const uint8_t* m = multipliers + c / a::kNarrowGroup * 16 + pair * 2;
      const size_t place = (pair * padded_dim + c) * 2;
      touch(reinterpret_cast<const uint8_t*>(in) + place + size_t{padded_dim} * 32);
      widen(in + place, _mm512_set1_epi32((m[0] + 1) | (m[1] + 1) << 16), out + place);
    }
  }
}

constexpr AttentionSteps kSteps = {4,
                                   {score_rows<1>, score_rows<2>, score_rows<3>, score_rows<4>},
                                   largest_score,
                                   weigh_row,
                                   {sum_rows<1>, sum_rows<2>, sum_rows<3>, sum_rows<4>},
                                   finish_row,
                                   widen_keys,
                                   widen_values};

}  // namespace

bool attention(const CacheView& cache, const AttentionTask& task, ThreadPool* pool,
               AttentionScratch& scratch, float* out) {
  return run_attention(kSteps, cache, task, pool, scratch, out);
}

}  // namespace tandem::kernels::cpu::avx512

#endif
