// Products of 8-bit weights with SIMD128: weights stored as w + 128 widen to 16 bits as they are
// loaded and meet the 16-bit activations in i32x4.dot_i16x8, two products a lane and step:
//   sum w x = sum (w + 128) x - 128 * sum x.
// A lane grows by at most 2 * 255 * 32639 < 2^31 / 129 a step, so sums are widened every 128 steps.
#include "kernels/cpu/simd128_matmul.h"

#if defined(__wasm_simd128__)

namespace tandem::kernels::cpu::simd128 {
namespace {

constexpr uint32_t kSegment = 128;
constexpr size_t kAhead = 1024;  // bytes

// WebAssembly can't ask for memory ahead: a load whose value nobody waits for does.
inline void touch(const uint8_t* byte) {
  (void)*static_cast<const volatile uint8_t*>(byte);
}

// Quarters [quarter, quarter + Quarters) of a tile for `Tokens` tokens. Twice Quarters times Tokens
// sums are under way: eight of the sixteen registers that most machines have.
template <uint32_t Tokens, uint32_t Quarters>
TANDEM_KERNEL void block(const MatmulOutput& o, uint32_t tile, uint32_t quarter, uint32_t token) {
  const size_t padded = o.in.padded;
  const int16_t* x = o.in.values.data() + token * padded;
  const uint8_t* w = o.matrix.tile(tile) + quarter * 16;
  const uint32_t steps = o.in.padded / 4;
  const size_t ahead =
      o.matrix.tile_bytes() * (tile + 1) + kAhead <= o.matrix.data.size() ? kAhead : 0;
  v128_t total[Tokens][Quarters][2];
  for (uint32_t t = 0; t < Tokens; ++t) {
    const v128_t offset = wasm_i64x2_splat(-128 * o.in.sums[token + t]);
    for (uint32_t q = 0; q < Quarters; ++q) total[t][q][0] = total[t][q][1] = offset;
  }
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    v128_t sums[Tokens][Quarters][2];
#pragma clang loop unroll(full)
    for (uint32_t t = 0; t < Tokens; ++t) {
#pragma clang loop unroll(full)
      for (uint32_t q = 0; q < Quarters; ++q) {
        sums[t][q][0] = sums[t][q][1] = wasm_i32x4_const_splat(0);
      }
    }
    for (uint32_t step = begin; step < end; ++step) {
      if constexpr (Tokens == 1) touch(w + step * 64 + ahead);
      v128_t values[Tokens];
#pragma clang loop unroll(full)
      for (uint32_t t = 0; t < Tokens; ++t) values[t] = four(x + t * padded + step * 4);
#pragma clang loop unroll(full)
      for (uint32_t q = 0; q < Quarters; ++q) {
#pragma clang loop unroll(full)
        for (uint32_t half = 0; half < 2; ++half) {
          const v128_t weights = wasm_u16x8_load8x8(w + step * 64 + q * 16 + half * 8);
#pragma clang loop unroll(full)
          for (uint32_t t = 0; t < Tokens; ++t) {
            sums[t][q][half] =
                wasm_i32x4_add(sums[t][q][half], wasm_i32x4_dot_i16x8(weights, values[t]));
          }
        }
      }
    }
#pragma clang loop unroll(full)
    for (uint32_t t = 0; t < Tokens; ++t) {
#pragma clang loop unroll(full)
      for (uint32_t q = 0; q < Quarters; ++q) {
        // The two lanes of each row are added in 64 bits.
        for (const v128_t lanes :
             {even_lanes(sums[t][q][0], sums[t][q][1]), odd_lanes(sums[t][q][0], sums[t][q][1])}) {
          total[t][q][0] = wasm_i64x2_add(total[t][q][0], wasm_i64x2_extend_low_i32x4(lanes));
          total[t][q][1] = wasm_i64x2_add(total[t][q][1], wasm_i64x2_extend_high_i32x4(lanes));
        }
      }
    }
  }
  for (uint32_t t = 0; t < Tokens; ++t) {
    for (uint32_t q = 0; q < Quarters; ++q) {
      store_quarter(o, tile, quarter + q, token + t, total[t][q][0], total[t][q][1]);
    }
  }
}

}  // namespace

void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    uint32_t token = 0;
    for (; token + 2 <= in.tokens; token += 2) {
      block<2, 2>(o, tile, 0, token);
      block<2, 2>(o, tile, 2, token);
    }
    if (token < in.tokens) block<1, 4>(o, tile, 0, token);
  }
}

}  // namespace tandem::kernels::cpu::simd128

#endif
