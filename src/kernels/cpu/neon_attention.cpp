// Attention with NEON: scores of 16 positions at once, then weights, then eight channels of values
// at once. Rows (heads and tokens that share a kv head) go in twos, so that keys and values are
// loaded once for them.
#include <climits>

#include "arithmetic/exponential.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/neon_vector.h"

#if defined(__aarch64__)

namespace tandem::kernels::cpu::neon {
namespace {

namespace a = arithmetic;

inline int32x4_t load_exponents(const int16_t* exponents) {
  return vmovl_s16(vld1_s16(exponents));
}

// All ones in the lanes whose bit is set.
inline uint32x4_t lane_mask(uint32_t bits) {
  constexpr uint32_t kEach[4] = {1, 2, 4, 8};
  return vtstq_u32(vdupq_n_u32(bits), vld1q_u32(kEach));
}

// Scores of rows [row, row + Rows) for blocks [from, to). A lane takes two products of 16-bit
// integers, 2 * 32639^2 < 2^31, before it is added to its position's 64-bit sum. 64 products (16
// positions, 4 channels) take 16 multiplications, 8 pairwise additions and 2 copies of a query's
// channels; with the query in two byte planes and 32-bit sums there would be 32 multiplications.
template <int Rows>
void score_rows(const CacheView& cache, const AttentionTask& task, const AttentionPlan& plan,
                uint32_t row, uint32_t from, uint32_t to) {
  const int16_t* q[Rows];
  for (uint32_t r = 0; r < Rows; ++r) {
    q[r] = task.queries + (row + r) / task.heads * task.query_stride +
           size_t{(row + r) % task.heads} * cache.padded_dim;
  }
  for (uint32_t block = from; block < to; ++block) {
    const int16_t* keys = plan.block_of(cache.keys, block, cache.padded_dim);
    const int16_t* exponents = plan.exponents_of(cache.key_exponents, block);
    // Two positions a vector.
    int64x2_t sums[Rows][8];
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < 8; ++i) sums[r][i] = vdupq_n_s64(0);
    }
    for (size_t channel = 0; channel < cache.padded_dim; channel += 4) {
      int16x8_t first[Rows];   // channels 0 and 1 in turn
      int16x8_t second[Rows];  // channels 2 and 3
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        const int32x2_t four = vreinterpret_s32_s16(vld1_s16(q[r] + channel));
        first[r] = vreinterpretq_s16_s32(vdupq_lane_s32(four, 0));
        second[r] = vreinterpretq_s16_s32(vdupq_lane_s32(four, 1));
      }
      const int16_t* pairs = keys + channel * 16;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int16x8_t k0 = vld1q_s16(pairs + i * 8);
        const int16x8_t k1 = vld1q_s16(pairs + 32 + i * 8);
#pragma GCC unroll 2
        for (int r = 0; r < Rows; ++r) {
          const int32x4_t lower = vmlal_s16(vmull_s16(vget_low_s16(k0), vget_low_s16(first[r])),
                                            vget_low_s16(k1), vget_low_s16(second[r]));
          const int32x4_t upper = vmlal_high_s16(vmull_high_s16(k0, first[r]), k1, second[r]);
          sums[r][2 * i] = vpadalq_s32(sums[r][2 * i], lower);
          sums[r][2 * i + 1] = vpadalq_s32(sums[r][2 * i + 1], upper);
        }
      }
    }
    for (uint32_t r = 0; r < Rows; ++r) {
      const uint32_t index = row + r;
      const int32_t exponent =
          task.exponents[index / task.heads * task.exponent_stride + index % task.heads];
      for (uint32_t i = 0; i < 4; ++i) {
        const int32x4_t sum = vaddq_s32(load_exponents(exponents + i * 4), vdupq_n_s32(exponent));
        const int32x4_t clamped = vmaxq_s32(vminq_s32(sum, vdupq_n_s32(100)), vdupq_n_s32(-100));
        const float32x4_t value = vmulq_f32(round64(sums[r][2 * i], sums[r][2 * i + 1]),
                                            vmulq_n_f32(power_of_two(clamped), task.constant));
        const float32x4_t bounded =
            vmaxq_f32(vminq_f32(value, vdupq_n_f32(0x1p30F)), vdupq_n_f32(-0x1p30F));
        vst1q_s32(plan.row_scores(index) + size_t{block} * 16 + i * 4, vcvtnq_s32_f32(bounded));
      }
    }
  }
}

// Two positions' part of the denominator: 2^40 >> k, rounded, is 0 from k = 42 on.
inline uint64x2_t masses(uint32x2_t mantissas, int32x2_t k) {
  return vrshlq_u64(vshll_n_u32(mantissas, 24), vnegq_s64(vmovl_s32(k)));
}

// Largest score of positions that a row sees.
int32_t largest_score(const AttentionTask& task, const AttentionPlan& plan, uint32_t row,
                      uint32_t from, uint32_t to) {
  const uint32_t base = plan.first_block * a::kBlock;
  const uint32_t begin = std::max(task.begin(row / task.heads) - base, from * a::kBlock);
  const uint32_t end = std::min(task.end(row / task.heads) - base, to * a::kBlock);
  const int32_t* scores = plan.row_scores(row);
  int32_t most = INT_MIN;
  for (uint32_t j = begin; j < end; ++j) most = std::max(most, scores[j]);
  return most;
}

// Replaces a row's scores by the weights of its positions, two halves of 12 bits each.
RowMass weigh_row(const CacheView& cache, const AttentionTask& task, const AttentionPlan& plan,
                  uint32_t row, int32_t most, uint32_t from, uint32_t to) {
  const uint32_t begin = task.begin(row / task.heads);
  const uint32_t end = task.end(row / task.heads);
  int32_t* scores = plan.row_scores(row);
  int32_t* shifts = plan.row_shifts(row);
  uint64x2_t denominator = vdupq_n_u64(0);
  RowMass result;
  for (uint32_t block = from; block < to; ++block) {
    const uint32_t bits = plan.lanes(block, begin, end);
    const int16_t* exponents = plan.exponents_of(cache.value_exponents, block);
    int32_t* place = scores + size_t{block} * 16;
    uint32x4_t m[4];
    int32x4_t shift[4];
    uint32x4_t mask[4];
    int32x4_t least = vdupq_n_s32(INT_MAX);
    for (uint32_t i = 0; i < 4; ++i) {
      mask[i] = lane_mask(bits >> (4 * i));
      // Up to 2^31, as an unsigned number.
      const uint32x4_t distance = vsubq_u32(vdupq_n_u32(static_cast<uint32_t>(most)),
                                            vreinterpretq_u32_s32(vld1q_s32(place + i * 4)));
      const int32x4_t k = vreinterpretq_s32_u32(vshrq_n_u32(distance, 16));
      m[i] = vandq_u32(mask[i], exp2_fraction(vandq_u32(distance, vdupq_n_u32(65535))));
      // Shifts take a signed byte.
      const int32x4_t down = vminq_s32(k, vdupq_n_s32(63));
      denominator = vaddq_u64(denominator, masses(vget_low_u32(m[i]), vget_low_s32(down)));
      denominator = vaddq_u64(denominator, masses(vget_high_u32(m[i]), vget_high_s32(down)));
      shift[i] =
          vbslq_s32(mask[i], vsubq_s32(k, load_exponents(exponents + i * 4)), vdupq_n_s32(INT_MAX));
      least = vminq_s32(least, shift[i]);
    }
    const int32_t base = vminvq_s32(least);
    shifts[block] = base;
    result.least = std::min(result.least, base);
    uint16x4_t low[4];
    uint16x4_t high[4];
    for (uint32_t i = 0; i < 4; ++i) {
      // Lanes that hold no position: a negative base minus INT_MAX wraps, so the mask decides.
      const int32x4_t up = vreinterpretq_s32_u32(
          vsubq_u32(vdupq_n_u32(static_cast<uint32_t>(base)), vreinterpretq_u32_s32(shift[i])));
      const uint32x4_t heavy = vandq_u32(mask[i], vcgtq_s32(up, vdupq_n_s32(-24)));
      const uint32x4_t weight = vandq_u32(heavy, vrshlq_u32(vshlq_n_u32(m[i], 7), up));
      low[i] = vmovn_u32(vandq_u32(weight, vdupq_n_u32(4095)));
      high[i] = vshrn_n_u32(weight, 12);
    }
    auto* halves = reinterpret_cast<uint16_t*>(place);
    for (uint32_t i = 0; i < 4; ++i) {
      vst1_u16(halves + 4 * i, low[i]);
      vst1_u16(halves + 16 + 4 * i, high[i]);
    }
  }
  result.denominator = vaddvq_u64(denominator);
  return result;
}

// total += (4096 high + low) * 64 >> down, rounded, for four channels. From a shift of
// kVanishingShift on it adds 0.
inline void add_block(int64_t* total, int32x4_t low, int32x4_t high, int64x2_t up) {
  const int64x2_t first =
      vaddq_s64(vshll_n_s32(vget_low_s32(high), 18), vshll_n_s32(vget_low_s32(low), 6));
  const int64x2_t second = vaddq_s64(vshll_high_n_s32(high, 18), vshll_high_n_s32(low, 6));
  vst1q_s64(total, vaddq_s64(vld1q_s64(total), vrshlq_s64(first, up)));
  vst1q_s64(total + 2, vaddq_s64(vld1q_s64(total + 2), vrshlq_s64(second, up)));
}

// sums += eight channels' values at one position times a lane of its weights.
template <int Lane>
inline void add_position(int32x4_t* sums, int16x8_t values, int16x8_t weights) {
  sums[0] = vmlal_laneq_s16(sums[0], vget_low_s16(values), weights, Lane);
  sums[1] = vmlal_high_laneq_s16(sums[1], values, weights, Lane);
}

struct RowSums {
  int32x4_t low[2];
  int32x4_t high[2];
};

// Two positions, `Pair` counted within a half of the block.
template <int Pair>
inline void add_pair(RowSums& sums, const int16x8x2_t& values, int16x8_t low, int16x8_t high) {
  add_position<2 * Pair>(sums.low, values.val[0], low);
  add_position<2 * Pair>(sums.high, values.val[0], high);
  add_position<2 * Pair + 1>(sums.low, values.val[1], low);
  add_position<2 * Pair + 1>(sums.high, values.val[1], high);
}

// Weighted sums of rows [row, row + Rows). No half's block sum overflows: |sum| <=
// 4095 * 32639 * 16 < 2^31. 128 products (16 positions, 8 channels) take 64 smlal and 8 loads that
// part even from odd positions.
template <int Rows>
void sum_rows(const CacheView& cache, const AttentionTask&, const AttentionPlan& plan, uint32_t row,
              uint32_t from, uint32_t to) {
  const uint32_t dim = cache.padded_dim;
  for (uint32_t block = from; block < to; ++block) {
    int64x2_t up[Rows];
    bool any = false;
    int16x8_t low[Rows][2];
    int16x8_t high[Rows][2];
    for (uint32_t r = 0; r < Rows; ++r) {
      const int64_t shift = int64_t{plan.row_shifts(row + r)[block]} - plan.masses[row + r].least;
      any = any || shift < kVanishingShift;
      up[r] = vdupq_n_s64(-std::min<int64_t>(shift, kVanishingShift));
      const auto* halves =
          reinterpret_cast<const int16_t*>(plan.row_scores(row + r) + size_t{block} * 16);
      for (int i = 0; i < 2; ++i) {
        low[r][i] = vld1q_s16(halves + i * 8);
        high[r][i] = vld1q_s16(halves + 16 + i * 8);
      }
    }
    if (!any) continue;
    const int16_t* values = plan.block_of(cache.values, block, dim);
    for (size_t c = 0; c < dim; c += 8) {
      RowSums sums[Rows];
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        for (int i = 0; i < 2; ++i) sums[r].low[i] = sums[r].high[i] = vdupq_n_s32(0);
      }
      const int16_t* pair = values + c * 2;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        int16x8x2_t two[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          two[i] = vld2q_s16(pair);
          pair += size_t{dim} * 2;
        }
#pragma GCC unroll 2
        for (int r = 0; r < Rows; ++r) {
          add_pair<0>(sums[r], two[0], low[r][half], high[r][half]);
          add_pair<1>(sums[r], two[1], low[r][half], high[r][half]);
          add_pair<2>(sums[r], two[2], low[r][half], high[r][half]);
          add_pair<3>(sums[r], two[3], low[r][half], high[r][half]);
        }
      }
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        int64_t* total = plan.totals + (row + static_cast<size_t>(r)) * dim + c;
        for (int i = 0; i < 2; ++i) {
          add_block(total + i * 4, sums[r].low[i], sums[r].high[i], up[r]);
        }
      }
    }
  }
}

void finish_row(const int64_t* totals, uint32_t head_dim, const RowMass& mass, float* out) {
  const a::Scaled inverse = a::reciprocal(mass.denominator);
  const float factor = static_cast<float>(inverse.mantissa) * 0x1p-40F;
  const float power = a::power_of_two(inverse.exponent + 51 - mass.least);
  for (uint32_t c = 0; c < head_dim; ++c) {
    const float product = static_cast<float>(totals[c]) * factor;
    out[c] = product * power;
  }
}

constexpr AttentionSteps kSteps = {2,
                                   {score_rows<1>, score_rows<2>, nullptr, nullptr},
                                   largest_score,
                                   weigh_row,
                                   {sum_rows<1>, sum_rows<2>, nullptr, nullptr},
                                   finish_row,
                                   plain_widen_keys,
                                   plain_widen_values};

}  // namespace

bool attention(const CacheView& cache, const AttentionTask& task, ThreadPool* pool,
               AttentionScratch& scratch, float* out) {
  return run_attention(kSteps, cache, task, pool, scratch, out);
}

}  // namespace tandem::kernels::cpu::neon

#endif
