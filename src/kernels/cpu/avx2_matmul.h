// What the 8-bit and the 4-bit product of the AVX2 set share.
#pragma once

#if defined(__x86_64__)

#include "kernels/cpu/avx2_vector.h"

namespace tandem::kernels::cpu::avx2 {
namespace {

// Where a call's results go, and the factors they are scaled by.
struct MatmulOutput {
  const PackedMatrix& matrix;
  const ActivationView& in;
  const float* bias;
  float* out;
  size_t stride;
};

// A tile's rows of one token from their exact sums, four rows a vector: one rounding to float, one
// product, perhaps one sum.
TANDEM_AVX2 inline void store_rows(const MatmulOutput& o, uint32_t tile, uint32_t token,
                                   const __m256i* sums) {
  const __m128 power = _mm_set1_ps(arithmetic::power_of_two(o.in.exponents[token]));
  float rows[kTileRows];
  const uint32_t row = tile * kTileRows;
  for (uint32_t i = 0; i < 4; ++i) {
    const __m128 scale = _mm_mul_ps(_mm_loadu_ps(&o.matrix.row_scales[row + 4 * i]), power);
    _mm_storeu_ps(rows + 4 * i, _mm_mul_ps(round64(sums[i]), scale));
  }
  const uint32_t count = o.matrix.rows - row < kTileRows ? o.matrix.rows - row : kTileRows;
  float* out = o.out + token * o.stride + row;
  for (uint32_t i = 0; i < count; ++i) {
    out[i] = o.bias != nullptr ? rows[i] + o.bias[row + i] : rows[i];
  }
}

// Into the second cache. As an instruction, not as _mm_prefetch: GCC 12 takes a function that does
// nothing else for one without effect, and drops the call.
TANDEM_AVX2 inline void touch(const uint8_t* line) {
  asm volatile("prefetcht1 %0" : : "m"(*line));
}

}  // namespace
}  // namespace tandem::kernels::cpu::avx2

#endif
