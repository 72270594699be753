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
struct Halves {
  __m512i low;
  __m512i high;
};

// One or two rows read keys and values faster than they multiply, in ascending order without gaps,
// which the processor follows by itself. From this many rows on they multiply for so long that it
// loses them, and the next block is asked for meanwhile.
constexpr int kManyRows = 3;
// The processor does not follow what is read a line in two blocks: exponents and weights are asked
// for this many blocks before.
constexpr uint32_t kBlocksAhead = 8;
// Lines of a stream's beginning that are asked for before it is read: it takes the processor more
// than a microsecond to follow one at full speed.
constexpr size_t kFirstLines = 64;

TANDEM_AVX512_INLINE void touch_beginning(const int16_t* block) {
  for (size_t i = 0; i < kFirstLines; ++i) touch(reinterpret_cast<const uint8_t*>(block + i * 32));
}

// What follows a chunk's last block may lie elsewhere.
TANDEM_AVX512_INLINE void touch_next_chunk(const AttentionPlan& plan,
                                           std::span<const int16_t* const> chunks, uint32_t block,
                                           uint32_t padded_dim) {
  const bool last = (plan.first_block + block + 1) % (kChunk / a::kBlock) == 0;
  if (!last) return;
  const int16_t* next = plan.block_after(chunks, block, 1, padded_dim);
  const int16_t* own = plan.block_of(chunks, block, padded_dim);
  if (next != own && next != own + size_t{a::kBlock} * padded_dim) touch_beginning(next);
}
TANDEM_AVX512_INLINE void touch_exponents(const AttentionPlan& plan,
                                          std::span<const int16_t* const> chunks, uint32_t block) {
  if (block + kBlocksAhead >= plan.blocks) return;
  touch(reinterpret_cast<const uint8_t*>(plan.exponents_of(chunks, block + kBlocksAhead)));
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

// Scores of rows [row, row + Rows) for one block. No plane's sum overflows:
// |sum| <= 32639 * 128 * kMaxHeadDim < 2^31. Few rows have two sums each, of even and of odd pairs
// of channels, since a product takes as long as four.
template <int Rows>
TANDEM_AVX512_INLINE void score_block(const CacheView& cache, const AttentionTask& task,
                                      const AttentionPlan& plan, uint32_t row, uint32_t block) {
  constexpr int kSums = Rows <= 2 ? 2 : 1;
  const size_t dim = cache.padded_dim;
  const size_t query_bytes = dim * 4;
  const uint8_t* planes = plan.queries + row * query_bytes;
  const int16_t* keys = plan.block_of(cache.keys, block, cache.padded_dim);
  const int16_t* ahead = plan.block_after(cache.keys, block, 1, cache.padded_dim);
  Halves sums[Rows][kSums];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kSums; ++i) sums[r][i] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  }
  for (size_t pair = 0; pair < dim / 2; pair += kSums) {
#pragma GCC unroll 2
    for (int i = 0; i < kSums; ++i) {
      const __m512i two = _mm512_loadu_si512(keys);
      keys += 32;
      if constexpr (Rows >= kManyRows) {
        touch(reinterpret_cast<const uint8_t*>(ahead));
        ahead += 32;
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const uint8_t* own = planes + static_cast<size_t>(r) * query_bytes;
        add_pairs(sums[r][i].low, two, own);
        add_pairs(sums[r][i].high, two, own + 4);
      }
      planes += 8;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    Halves all = sums[r][0];
    if constexpr (kSums == 2) {
      all.low = _mm512_add_epi32(all.low, sums[r][1].low);
      all.high = _mm512_add_epi32(all.high, sums[r][1].high);
    }
    store_block(cache, task, plan, row + static_cast<uint32_t>(r), block, all);
  }
}

template <int Rows>
TANDEM_AVX512 void score_rows(const CacheView& cache, const AttentionTask& task,
                              const AttentionPlan& plan, uint32_t row, uint32_t from, uint32_t to) {
  for (uint32_t block = from; block < to; ++block) {
    touch_next_chunk(plan, cache.keys, block, cache.padded_dim);
    touch_exponents(plan, cache.key_exponents, block);
    score_block<Rows>(cache, task, plan, row, block);
  }
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
    touch_exponents(plan, cache.value_exponents, block);
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
// Blocks of a call that add something to one of its rows.
template <int Rows>
struct Blocks {
  uint32_t count;
  uint32_t index[kMostBlocksAtOnce];
  Join joins[kMostBlocksAtOnce][Rows];
};

// Weighted sums of one row for 16 * Vectors channels. No half's block sum overflows:
// |sum| <= 4095 * 32639 * 16 = 2^31 - 8,975,168.
template <int Vectors, bool Unsigned, bool Ahead>
TANDEM_AVX512_INLINE void sum_channels(const Join& join, const uint8_t* weights,
                                       const int16_t* values, const int16_t* next, size_t dim,
                                       int64_t* totals) {
  const __m512i low = _mm512_set1_epi32(Unsigned ? join.start_low : 0);
  const __m512i high = _mm512_set1_epi32(Unsigned ? INT_MIN : 0);
  Halves sums[Vectors];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) sums[v] = {low, high};
#pragma GCC unroll 8
  for (size_t pair = 0; pair < a::kBlock / 2; ++pair) {
    const __m512i l = broadcast4(weights + pair * 4);
    const __m512i h = broadcast4(weights + pair * 4 + 32);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const size_t place = pair * dim * 2 + static_cast<size_t>(v) * 32;
      const __m512i two = _mm512_loadu_si512(values + place);
      if constexpr (Ahead) touch(reinterpret_cast<const uint8_t*>(next + place));
      add_pairs(sums[v].low, two, l);
      add_pairs(sums[v].high, two, h);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) {
    join_vector<Unsigned>(join, sums[v], totals + static_cast<size_t>(v) * 16);
  }
}

// The channels that a row's sums have registers for at once. All of a block's are then read in
// ascending order.
constexpr int kVectorsAtOnce = 8;

template <bool Unsigned, bool Ahead>
TANDEM_AVX512 void sum_row(const Join& join, const uint8_t* weights, const int16_t* values,
                           const int16_t* next, size_t dim, int64_t* totals) {
  size_t c = 0;
  for (; c + 16 * kVectorsAtOnce <= dim; c += 16 * kVectorsAtOnce) {
    sum_channels<kVectorsAtOnce, Unsigned, Ahead>(join, weights, values + c * 2, next + c * 2, dim,
                                                  totals + c);
  }
  for (; c + 32 <= dim; c += 32) {
    sum_channels<2, Unsigned, Ahead>(join, weights, values + c * 2, next + c * 2, dim, totals + c);
  }
  if (c < dim)
    sum_channels<1, Unsigned, Ahead>(join, weights, values + c * 2, next + c * 2, dim, totals + c);
}

// Brings a block that sums won't read in ascending order into the first cache.
TANDEM_AVX512 void read_through(const int16_t* values, size_t dim) {
  __m512i all = _mm512_setzero_si512();
  for (size_t i = 0; i < dim * a::kBlock; i += 32) {
    all = _mm512_or_si512(all, _mm512_loadu_si512(values + i));
  }
  asm volatile("" : : "v"(all));
}

template <int Rows, bool Unsigned>
TANDEM_AVX512 void sum_blocks(const CacheView& cache, const AttentionPlan& plan, uint32_t row,
                              const Blocks<Rows>& blocks) {
  const size_t dim = cache.padded_dim;
  for (uint32_t i = 0; i < blocks.count; ++i) {
    const uint32_t block = blocks.index[i];
    const int16_t* values = plan.block_of(cache.values, block, cache.padded_dim);
    touch_next_chunk(plan, cache.values, block, cache.padded_dim);
    if (dim != 16 * kVectorsAtOnce) read_through(values, dim);
    const int16_t* next = plan.block_after(cache.values, block, 1, cache.padded_dim);
    for (uint32_t r = 0; r < Rows; ++r) {
      const auto* weights =
          reinterpret_cast<const uint8_t*>(plan.row_scores(row + r) + size_t{block} * a::kBlock);
      if (block + kBlocksAhead < plan.blocks) touch(weights + kBlocksAhead * 64);
      int64_t* totals = plan.totals + (size_t{row} + r) * dim;
      if (Rows >= kManyRows && r == 0) {
        sum_row<Unsigned, true>(blocks.joins[i][r], weights, values, next, dim, totals);
      } else {
        sum_row<Unsigned, false>(blocks.joins[i][r], weights, values, next, dim, totals);
      }
    }
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
