// What the products of the NEON family share: four rows of a tile (a quad) fill a vector.
#pragma once

#if defined(__aarch64__)

#include <algorithm>

#include "kernels/cpu/neon_vector.h"

namespace tandem::kernels::cpu::neon {
namespace {

inline constexpr int kQuads = 4;  // of a tile

// Where a call's results go, and the factors they are scaled by.
struct MatmulOutput {
  const PackedMatrix& matrix;
  const ActivationView& in;
  const float* bias;
  float* out;
  size_t stride;
};

// The exact sums of four rows.
struct Sums {
  int64x2_t first;
  int64x2_t second;
};

inline Sums zero_sums() {
  return {vdupq_n_s64(0), vdupq_n_s64(0)};
}

// total += sums, and total += 256 * high + low.
inline void add_sums(Sums& total, int32x4_t sums) {
  total.first = vaddw_s32(total.first, vget_low_s32(sums));
  total.second = vaddw_high_s32(total.second, sums);
}
inline void add_planes(Sums& total, int32x4_t low, int32x4_t high) {
  add_sums(total, low);
  total.first = vaddq_s64(total.first, vshll_n_s32(vget_low_s32(high), 8));
  total.second = vaddq_s64(total.second, vshll_high_n_s32(high, 8));
}

inline void subtract(Sums& total, int64_t offset) {
  total.first = vsubq_s64(total.first, vdupq_n_s64(offset));
  total.second = vsubq_s64(total.second, vdupq_n_s64(offset));
}

// Four rows of one token: one rounding to float, one product, perhaps one sum.
inline void store_quad(const MatmulOutput& o, uint32_t tile, uint32_t quad, uint32_t token,
                       const Sums& sums) {
  const uint32_t row = tile * kTileRows + quad * 4;
  if (row >= o.matrix.rows) return;
  const float32x4_t scale = vmulq_n_f32(vld1q_f32(&o.matrix.row_scales[row]),
                                        arithmetic::power_of_two(o.in.exponents[token]));
  float32x4_t y = vmulq_f32(round64(sums.first, sums.second), scale);
  float* out = o.out + token * o.stride + row;
  if (o.matrix.rows - row >= 4) {
    if (o.bias != nullptr) y = vaddq_f32(y, vld1q_f32(o.bias + row));
    vst1q_f32(out, y);
    return;
  }
  float lanes[4];
  vst1q_f32(lanes, y);
  for (uint32_t i = 0; i < o.matrix.rows - row; ++i) {
    out[i] = o.bias != nullptr ? lanes[i] + o.bias[row + i] : lanes[i];
  }
}

inline void touch(const uint8_t* line) {
  __builtin_prefetch(line, 0, 2);
}

inline int8x16_t load_signed(const uint8_t* bytes) {
  return vreinterpretq_s8_u8(vld1q_u8(bytes));
}

// One block of a tile: `Tokens` tokens from `token` on, all 16 rows. `ahead` is a tile's worth of
// bytes to touch on the way.
using Block = void (*)(const MatmulOutput& o, uint32_t tile, uint32_t token, const uint8_t* ahead);

// Runs a call by blocks of up to `Most` tokens, blocks[n - 1] for n of them. A tile is streamed
// once from memory: one token touches the same stream a little ahead, the first of several blocks
// the next tile; what the others touch is in the cache.
template <size_t Most>
void run_blocks(const Block (&blocks)[Most], const MatmulOutput& o, uint32_t tile_begin,
                uint32_t tile_end) {
  constexpr size_t kAhead = 2048;
  const auto count = static_cast<uint32_t>((o.in.tokens + Most - 1) / Most);
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    const uint8_t* ahead =
        o.in.tokens == 1 ? o.matrix.tile(tile) + kAhead : o.matrix.tile(tile + 1);
    uint32_t token = 0;
    for (uint32_t b = 0; b < count; ++b) {
      const uint32_t tokens = (o.in.tokens - token) / (count - b);
      blocks[tokens - 1](o, tile, token, ahead);
      ahead = o.matrix.tile(tile);
      token += tokens;
    }
  }
}

}  // namespace
}  // namespace tandem::kernels::cpu::neon

#endif
