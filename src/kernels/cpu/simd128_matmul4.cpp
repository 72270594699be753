// Products of 4- and 6-bit weights with SIMD128. A group's weights are scale * (q - offset), so
//   sum w x = scale * (sum q x) - 8 minimum * (sum x)      (4 bits)
//   sum w x = scale * (sum q x - 32 * (sum x))             (6 bits)
// with the sums over the group's 32 columns. Quants widen to 16 bits as they are loaded and meet
// the 16-bit activations in i32x4.dot_i16x8. In 32 bits:
//   4 bits: |sum q x| <= 32 * 15 * 32639 < 2^24; |sum w x| <= 32 * 945 * 32639 < 2^30, so two
//   groups
//           fit before they are widened (partial results may wrap, the sum of two groups does not);
//   6 bits: |sum q x| <= 32 * 63 * 32639 < 2^26, the difference at most 32 * 32 * 32639 < 2^25; its
//           product with the scale is made in 64 bits.
#include "kernels/cpu/simd128_matmul.h"

#if defined(__wasm_simd128__)

namespace tandem::kernels::cpu::simd128 {
namespace {

// Four bytes as 32-bit integers.
inline v128_t widen(const uint8_t* bytes) {
  return wasm_u32x4_extend_low_u16x8(wasm_u16x8_extend_low_u8x16(wasm_v128_load32_zero(bytes)));
}

// The multipliers of a group for four rows.
struct Multipliers {
  v128_t scale;
  v128_t minimum;  // 4 bits: times 8
};

// `scales` are those of the group's step.
template <WeightFormat Format>
inline Multipliers multipliers(const uint8_t* scales, uint32_t group, uint32_t quarter) {
  if constexpr (Format == WeightFormat::k4) {
    const uint8_t* own = scales + quarter * 4;
    const v128_t byte = widen(own + group % 2 * 16);
    const v128_t rest = widen(own + 32);
    const v128_t high =
        group % 2 == 0 ? wasm_v128_and(rest, wasm_i32x4_const_splat(15)) : wasm_u32x4_shr(rest, 4);
    const v128_t minimum = wasm_v128_or(wasm_u32x4_shr(byte, 6), wasm_i32x4_shl(high, 2));
    return {wasm_v128_and(byte, wasm_i32x4_const_splat(63)), wasm_i32x4_shl(minimum, 3)};
  } else {
    return {widen(scales + group % 2 * 16 + quarter * 4), wasm_i32x4_const_splat(0)};
  }
}

// Quants of two rows: columns 0 to 3 and 4 to 7 of a chunk. `high` holds the top bits of the
// chunk's sixteen columns (6 bits).
template <WeightFormat Format>
inline void unpack(const uint8_t* low, v128_t high, uint32_t chunk, v128_t nibble, v128_t top,
                   v128_t& first, v128_t& second) {
  const v128_t bytes = wasm_u16x8_load8x8(low);
  first = wasm_v128_and(bytes, nibble);
  second = wasm_u16x8_shr(bytes, 4);
  if constexpr (Format == WeightFormat::k6) {
    const v128_t own = chunk % 2 == 0 ? wasm_i16x8_shl(high, 4) : high;
    first = wasm_v128_or(first, wasm_v128_and(own, top));
    second = wasm_v128_or(second, wasm_v128_and(wasm_u16x8_shr(own, 2), top));
  }
}

// total += what a group adds: `dots` are its sums of q x, `sum` that of x.
template <WeightFormat Format>
inline v128_t group_part(v128_t dots, const Multipliers& m, int32_t sum) {
  if constexpr (Format == WeightFormat::k4) {
    return wasm_i32x4_sub(wasm_i32x4_mul(dots, m.scale),
                          wasm_i32x4_mul(m.minimum, wasm_i32x4_splat(sum)));
  } else {
    return wasm_i32x4_sub(dots, wasm_i32x4_splat(32 * sum));
  }
}

// Quarters [quarter, quarter + Quarters) of a tile for `Tokens` tokens. Few sums and a short body,
// so that engines keep everything in registers: twice as many, or all chunks in a row, are slower.
template <WeightFormat Format, uint32_t Tokens, uint32_t Quarters>
TANDEM_KERNEL void block(const MatmulOutput& o, uint32_t tile, uint32_t quarter, uint32_t token) {
  const size_t padded = o.in.padded;
  const size_t sum_bytes = prepared_bytes(o.in.padded);
  const int16_t* x = o.in.values.data() + token * padded;
  const uint8_t* group_sums = o.in.prepared.data() + token * sum_bytes;
  const uint8_t* w = o.matrix.tile(tile);
  const uint32_t steps = o.in.padded / 64;
  v128_t total[Tokens][Quarters][2];
  for (uint32_t t = 0; t < Tokens; ++t) {
    for (uint32_t q = 0; q < Quarters; ++q) {
      total[t][q][0] = total[t][q][1] = wasm_i64x2_const_splat(0);
    }
  }
  const v128_t nibble = held16(15);
  const v128_t top = held16(0x30);
  for (uint32_t step = 0; step < steps; ++step) {
    const PackedStep packed = PackedStep::at(Format, steps, step);
    const uint8_t* low = w + packed.low + quarter * 16;
    const uint8_t* high_bits = w + packed.high + quarter * 16;
    v128_t both[Tokens][Quarters];
#pragma clang loop unroll(full)
    for (uint32_t g = 0; g < 2; ++g) {
      v128_t sums[Tokens][Quarters][2];
#pragma clang loop unroll(full)
      for (uint32_t t = 0; t < Tokens; ++t) {
#pragma clang loop unroll(full)
        for (uint32_t q = 0; q < Quarters; ++q) {
          sums[t][q][0] = sums[t][q][1] = wasm_i32x4_const_splat(0);
        }
      }
#pragma clang loop unroll(disable)
      for (uint32_t c = 0; c < 4; ++c) {
        const uint32_t chunk = g * 4 + c;
        v128_t values[Tokens][2];
#pragma clang loop unroll(full)
        for (uint32_t t = 0; t < Tokens; ++t) {
          values[t][0] = four(x + t * padded + step * 64 + chunk * 8);
          values[t][1] = four(x + t * padded + step * 64 + chunk * 8 + 4);
        }
#pragma clang loop unroll(full)
        for (uint32_t q = 0; q < Quarters; ++q) {
#pragma clang loop unroll(full)
          for (uint32_t half = 0; half < 2; ++half) {
            const size_t place = q * 16 + half * 8;
            const v128_t high =
                Format == WeightFormat::k6
                    ? wasm_u16x8_load8x8(high_bits + PackedStep::high_of(chunk) + place)
                    : wasm_i16x8_const_splat(0);
            v128_t first;
            v128_t second;
            unpack<Format>(low + PackedStep::low_of(Format, chunk) + place, high, chunk, nibble,
                           top, first, second);
#pragma clang loop unroll(full)
            for (uint32_t t = 0; t < Tokens; ++t) {
              v128_t& sum = sums[t][q][half];
              sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(first, values[t][0]));
              sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(second, values[t][1]));
            }
          }
        }
      }
#pragma clang loop unroll(full)
      for (uint32_t q = 0; q < Quarters; ++q) {
        const Multipliers m = multipliers<Format>(w + packed.scales, g, quarter + q);
#pragma clang loop unroll(full)
        for (uint32_t t = 0; t < Tokens; ++t) {
          int32_t sum;
          std::memcpy(&sum, group_sums + t * sum_bytes + (step * 2 + g) * 4, 4);
          const v128_t dots = wasm_i32x4_add(even_lanes(sums[t][q][0], sums[t][q][1]),
                                             odd_lanes(sums[t][q][0], sums[t][q][1]));
          const v128_t part = group_part<Format>(dots, m, sum);
          if constexpr (Format == WeightFormat::k6) {
            total[t][q][0] =
                wasm_i64x2_add(total[t][q][0], wasm_i64x2_extmul_low_i32x4(part, m.scale));
            total[t][q][1] =
                wasm_i64x2_add(total[t][q][1], wasm_i64x2_extmul_high_i32x4(part, m.scale));
          } else if (g == 0) {
            both[t][q] = part;
          } else {
            const v128_t sums_of_two = wasm_i32x4_add(both[t][q], part);
            total[t][q][0] =
                wasm_i64x2_add(total[t][q][0], wasm_i64x2_extend_low_i32x4(sums_of_two));
            total[t][q][1] =
                wasm_i64x2_add(total[t][q][1], wasm_i64x2_extend_high_i32x4(sums_of_two));
          }
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

template <WeightFormat Format>
void multiply(const MatmulOutput& o, uint32_t tile_begin, uint32_t tile_end) {
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    uint32_t token = 0;
    for (; token + 2 <= o.in.tokens; token += 2) {
      for (uint32_t quarter = 0; quarter < 4; ++quarter) {
        block<Format, 2, 1>(o, tile, quarter, token);
      }
    }
    if (token < o.in.tokens) {
      block<Format, 1, 2>(o, tile, 0, token);
      block<Format, 1, 2>(o, tile, 2, token);
    }
  }
}

}  // namespace

void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  if (matrix.format == WeightFormat::k4) {
    multiply<WeightFormat::k4>(o, tile_begin, tile_end);
  } else {
    multiply<WeightFormat::k6>(o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::simd128

#endif
