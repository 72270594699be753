// Attention with SIMD128: scores of eight positions at once, then weights, then four channels of
// values at once. Rows (heads and tokens that share a kv head) go in twos, so that keys and values
// are loaded once for them. There is no shift by a vector: shifts of weights become products with
// powers of two, exact for the few bits that a mantissa has.
#include <climits>

#include "arithmetic/exponential.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/simd128_vector.h"

#if defined(__wasm_simd128__)

namespace tandem::kernels::cpu::simd128 {
namespace {

namespace a = arithmetic;

// sum += a * b, two products of 16-bit integers a lane, the pair b in every lane.
inline void add_pairs(v128_t& sum, v128_t a, const uint8_t* b) {
  sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(a, wasm_v128_load32_splat(b)));
}

inline v128_t high_half(v128_t x) {
  return wasm_i64x2_shuffle(x, x, 1, 1);
}

// 256 * high + low of four lanes, exact in binary64, rounded once to binary32.
inline v128_t round_planes(v128_t low, v128_t high) {
  const v128_t unit = wasm_f64x2_const_splat(256.0);
  const auto two = [&](v128_t l, v128_t h) {
    return wasm_f32x4_demote_f64x2_zero(wasm_f64x2_add(
        wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(h), unit), wasm_f64x2_convert_low_i32x4(l)));
  };
  return wasm_i64x2_shuffle(two(low, high), two(high_half(low), high_half(high)), 0, 2);
}

// All ones in the lanes whose bit is set.
inline v128_t lane_mask(uint32_t bits) {
  const v128_t each = wasm_i32x4_const(1, 2, 4, 8);
  return wasm_i32x4_eq(wasm_v128_and(wasm_i32x4_splat(static_cast<int>(bits)), each), each);
}

// Scores of rows [row, row + Rows) for blocks [from, to), half a block at a time. No plane's sum
// overflows: |sum| <= 32639 * 128 * kMaxHeadDim < 2^31.
template <uint32_t Rows>
TANDEM_KERNEL void score_rows(const CacheView& cache, const AttentionTask& task,
                              const AttentionPlan& plan, uint32_t row, uint32_t from, uint32_t to) {
  const size_t query_bytes = size_t{cache.padded_dim} * 4;
  const uint8_t* q = plan.queries + row * query_bytes;
  const v128_t constant = wasm_f32x4_splat(task.constant);
  for (uint32_t half = from * 2; half < to * 2; ++half) {
    const uint32_t block = half / 2;
    const int16_t* keys = plan.block_of(cache.keys, block, cache.padded_dim) + half % 2 * 16;
    const int16_t* exponents = plan.exponents_of(cache.key_exponents, block) + half % 2 * 8;
    v128_t low[Rows][2];
    v128_t high[Rows][2];
#pragma clang loop unroll(full)
    for (uint32_t r = 0; r < Rows; ++r) {
      low[r][0] = low[r][1] = wasm_i32x4_const_splat(0);
      high[r][0] = high[r][1] = wasm_i32x4_const_splat(0);
    }
    for (size_t pair = 0; pair < cache.padded_dim / 2; ++pair) {
      const v128_t first = load(keys + pair * 32);
      const v128_t second = load(keys + pair * 32 + 8);
#pragma clang loop unroll(full)
      for (uint32_t r = 0; r < Rows; ++r) {
        const uint8_t* planes = q + r * query_bytes + pair * 8;
        add_pairs(low[r][0], first, planes);
        add_pairs(low[r][1], second, planes);
        add_pairs(high[r][0], first, planes + 4);
        add_pairs(high[r][1], second, planes + 4);
      }
    }
    for (uint32_t r = 0; r < Rows; ++r) {
      const uint32_t index = row + r;
      const int32_t exponent =
          task.exponents[index / task.heads * task.exponent_stride + index % task.heads];
      for (uint32_t part = 0; part < 2; ++part) {
        const v128_t sum =
            wasm_i32x4_add(wasm_i32x4_load16x4(exponents + part * 4), wasm_i32x4_splat(exponent));
        const v128_t clamped = wasm_i32x4_max(wasm_i32x4_min(sum, wasm_i32x4_const_splat(100)),
                                              wasm_i32x4_const_splat(-100));
        const v128_t value = wasm_f32x4_mul(round_planes(low[r][part], high[r][part]),
                                            wasm_f32x4_mul(constant, power_of_two(clamped)));
        const v128_t bounded =
            wasm_f32x4_pmax(wasm_f32x4_pmin(value, wasm_f32x4_const_splat(0x1p30F)),
                            wasm_f32x4_const_splat(-0x1p30F));
        store(plan.row_scores(index) + size_t{half} * 8 + part * 4,
              wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(bounded)));
      }
    }
  }
}

// Two positions' part of the denominator, each with 2^52's bits added: floor(m 2^(24 - k) + 1/2).
// The product and the sum are exact where they count, up to k = 41; from there on both are below 1.
inline v128_t masses(v128_t mantissas, v128_t k) {
  const v128_t bounded = wasm_i32x4_min(k, wasm_i32x4_const_splat(64));
  const v128_t exponent = wasm_i32x4_sub(wasm_i32x4_const_splat(1023 + 24), bounded);
  const v128_t power = wasm_i64x2_shl(wasm_u64x2_extend_low_u32x4(exponent), 52);
  const v128_t mass = wasm_f64x2_add(wasm_f64x2_mul(wasm_f64x2_convert_low_i32x4(mantissas), power),
                                     wasm_f64x2_const_splat(0.5));
  return wasm_f64x2_add(wasm_f64x2_floor(mass), wasm_f64x2_const_splat(0x1p52));
}

inline int32_t reduce_min(v128_t x) {
  int32_t lanes[4];
  store(lanes, x);
  int32_t least = lanes[0];
  for (const int32_t lane : lanes) least = std::min(least, lane);
  return least;
}

// shift_round(m << 7, down) for down from 0 to 23: m 2^(7 - down) + 1/2 has 24 bits, but for 2^23 +
// 1/2, which rounds to 2^23, the right answer.
inline v128_t weights(v128_t mantissas, v128_t down) {
  const v128_t power = power_of_two(wasm_i32x4_sub(wasm_i32x4_const_splat(7), down));
  return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_add(
      wasm_f32x4_mul(wasm_f32x4_convert_i32x4(mantissas), power), wasm_f32x4_const_splat(0.5F)));
}

// Largest score of positions that a row sees.
TANDEM_KERNEL int32_t largest_score(const AttentionTask& task, const AttentionPlan& plan,
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
TANDEM_KERNEL RowMass weigh_row(const CacheView& cache, const AttentionTask& task,
                                const AttentionPlan& plan, uint32_t row, int32_t most,
                                uint32_t from, uint32_t to) {
  const uint32_t begin = task.begin(row / task.heads);
  const uint32_t end = task.end(row / task.heads);
  int32_t* scores = plan.row_scores(row);
  int32_t* shifts = plan.row_shifts(row);
  const v128_t largest = wasm_i32x4_splat(most);
  v128_t denominator = wasm_i64x2_const_splat(0);
  RowMass result;
  for (uint32_t block = from; block < to; ++block) {
    const uint32_t bits = plan.lanes(block, begin, end);
    const int16_t* exponents = plan.exponents_of(cache.value_exponents, block);
    int32_t* place = scores + size_t{block} * 16;
    v128_t m[4];
    v128_t shift[4];
    v128_t least = wasm_i32x4_const_splat(INT_MAX);
    for (uint32_t part = 0; part < 4; ++part) {
      const v128_t mask = lane_mask(bits >> (4 * part));
      // Up to 2^31, as an unsigned number.
      const v128_t distance = wasm_i32x4_sub(largest, load(place + part * 4));
      const v128_t k = wasm_u32x4_shr(distance, 16);
      m[part] = wasm_v128_and(
          mask, exp2_fraction(wasm_v128_and(distance, wasm_i32x4_const_splat(65535))));
      denominator = wasm_i64x2_add(denominator, masses(m[part], k));
      denominator = wasm_i64x2_add(denominator, masses(high_half(m[part]), high_half(k)));
      shift[part] =
          wasm_v128_bitselect(wasm_i32x4_sub(k, wasm_i32x4_load16x4(exponents + part * 4)),
                              wasm_i32x4_const_splat(INT_MAX), mask);
      least = wasm_i32x4_min(least, shift[part]);
    }
    const int32_t base = reduce_min(least);
    shifts[block] = base;
    result.least = std::min(result.least, base);
    v128_t weight[4];
    for (uint32_t part = 0; part < 4; ++part) {
      // Lanes that hold no position have m = 0; a shift that wrapped or is 24 or more is cut off,
      // and what is left is a valid power.
      const v128_t down = wasm_i32x4_sub(shift[part], wasm_i32x4_splat(base));
      const v128_t heavy = wasm_u32x4_lt(down, wasm_i32x4_const_splat(24));
      weight[part] = wasm_v128_and(weights(m[part], wasm_v128_and(down, heavy)), heavy);
    }
    const v128_t low = wasm_i32x4_const_splat(4095);
    for (uint32_t half = 0; half < 2; ++half) {
      const v128_t first = weight[half * 2];
      const v128_t second = weight[half * 2 + 1];
      auto* lows = reinterpret_cast<int16_t*>(place) + half * 8;
      store(lows, wasm_i16x8_narrow_i32x4(wasm_v128_and(first, low), wasm_v128_and(second, low)));
      store(lows + 16,
            wasm_i16x8_narrow_i32x4(wasm_u32x4_shr(first, 12), wasm_u32x4_shr(second, 12)));
    }
  }
  // Every position, of the row or not, added 2^52's bits once.
  constexpr uint64_t kBits = uint64_t{1023 + 52} << 52;
  result.denominator = static_cast<uint64_t>(wasm_i64x2_extract_lane(denominator, 0)) +
                       static_cast<uint64_t>(wasm_i64x2_extract_lane(denominator, 1)) -
                       kBits * (to - from) * a::kBlock;
  return result;
}

// x >> down, rounded, for |x| <= 2^48 and down <= kVanishingShift: a bias makes it positive, since
// an arithmetic shift of 64 bits is slow on many machines.
inline v128_t shift_round_signed(v128_t x, uint32_t down) {
  const int64_t round = down == 0 ? 0 : int64_t{1} << (down - 1);
  constexpr int64_t kBias = int64_t{1} << 60;
  const v128_t positive = wasm_i64x2_add(x, wasm_i64x2_splat(kBias + round));
  return wasm_i64x2_sub(wasm_u64x2_shr(positive, down), wasm_i64x2_splat(kBias >> down));
}

// The 64-bit sums of one row and four channels.
inline void add_block(int64_t* total, v128_t low, v128_t high, uint32_t down) {
  // (4096 high + low) << 6 by exact 32-bit products.
  const v128_t low_unit = wasm_i32x4_const_splat(64);
  const v128_t high_unit = wasm_i32x4_const_splat(4096 * 64);
  const v128_t first = wasm_i64x2_add(wasm_i64x2_extmul_low_i32x4(high, high_unit),
                                      wasm_i64x2_extmul_low_i32x4(low, low_unit));
  const v128_t second = wasm_i64x2_add(wasm_i64x2_extmul_high_i32x4(high, high_unit),
                                       wasm_i64x2_extmul_high_i32x4(low, low_unit));
  store(total, wasm_i64x2_add(load(total), shift_round_signed(first, down)));
  store(total + 2, wasm_i64x2_add(load(total + 2), shift_round_signed(second, down)));
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

// Weighted sums of rows [row, row + Rows). No half's block sum overflows: |sum| <=
// 4095 * 32639 * 16 < 2^31.
template <uint32_t Rows>
TANDEM_KERNEL void sum_rows(const CacheView& cache, const AttentionTask&, const AttentionPlan& plan,
                            uint32_t row, uint32_t from, uint32_t to) {
  const uint32_t dim = cache.padded_dim;
  for (uint32_t block = from; block < to; ++block) {
    uint32_t down[Rows];
    bool any = false;
    const uint8_t* halves[Rows];
    for (uint32_t r = 0; r < Rows; ++r) {
      const int64_t shift = int64_t{plan.row_shifts(row + r)[block]} - plan.masses[row + r].least;
      down[r] = static_cast<uint32_t>(std::min<int64_t>(shift, kVanishingShift));
      any = any || down[r] < kVanishingShift;
      halves[r] = reinterpret_cast<const uint8_t*>(plan.row_scores(row + r) + size_t{block} * 16);
    }
    if (!any) continue;
    const int16_t* values = plan.block_of(cache.values, block, dim);
    for (size_t c = 0; c < dim; c += 4) {
      v128_t low[Rows];
      v128_t high[Rows];
#pragma clang loop unroll(full)
      for (uint32_t r = 0; r < Rows; ++r) {
        low[r] = wasm_i32x4_const_splat(0);
        high[r] = wasm_i32x4_const_splat(0);
      }
#pragma clang loop unroll(full)
      for (size_t pair = 0; pair < 8; ++pair) {
        const v128_t value = load(values + pair * dim * 2 + c * 2);
#pragma clang loop unroll(full)
        for (uint32_t r = 0; r < Rows; ++r) {
          add_pairs(low[r], value, halves[r] + pair * 4);
          add_pairs(high[r], value, halves[r] + 32 + pair * 4);
        }
      }
#pragma clang loop unroll(full)
      for (uint32_t r = 0; r < Rows; ++r) {
        add_block(plan.totals + size_t{row + r} * dim + c, low[r], high[r], down[r]);
      }
    }
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

}  // namespace tandem::kernels::cpu::simd128

#endif
