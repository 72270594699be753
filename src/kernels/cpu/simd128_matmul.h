// What the 8-bit and the 4-bit product of the SIMD128 set share. A quarter is four rows of a tile:
// its weights of one step are 16 bytes.
#pragma once

#if defined(__wasm_simd128__)

#include "kernels/cpu/simd128_vector.h"

namespace tandem::kernels::cpu::simd128 {
namespace {

// Where a call's results go, and the factors they are scaled by.
struct MatmulOutput {
  const PackedMatrix& matrix;
  const ActivationView& in;
  const float* bias;
  float* out;
  size_t stride;
};

// Four rows of one token from their exact sums: one rounding to float, one product, perhaps one
// sum.
inline void store_quarter(const MatmulOutput& o, uint32_t tile, uint32_t quarter, uint32_t token,
                          v128_t first, v128_t second) {
  const uint32_t row = tile * kTileRows + quarter * 4;
  if (row >= o.matrix.rows) return;
  const v128_t power = wasm_f32x4_splat(arithmetic::power_of_two(o.in.exponents[token]));
  const v128_t scale = wasm_f32x4_mul(load(&o.matrix.row_scales[row]), power);
  float rows[4];
  store(rows, wasm_f32x4_mul(round64(first, second), scale));
  const uint32_t count = o.matrix.rows - row < 4 ? o.matrix.rows - row : 4;
  float* out = o.out + token * o.stride + row;
  for (uint32_t i = 0; i < count; ++i) {
    out[i] = o.bias != nullptr ? rows[i] + o.bias[row + i] : rows[i];
  }
}

// Four 16-bit activations in both halves.
inline v128_t four(const int16_t* x) {
  return wasm_v128_load64_splat(x);
}

}  // namespace
}  // namespace tandem::kernels::cpu::simd128

#endif
