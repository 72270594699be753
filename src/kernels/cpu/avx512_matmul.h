// What the 8-bit and the 4-bit product share: tokens in register blocks, and the way from two
// integer sums to a float.
#pragma once

#if defined(__x86_64__)

#include "kernels/cpu/avx512_vector.h"

namespace tandem::kernels::cpu::avx512 {
namespace {

// Where a call's results go, and the factors they are scaled by.
struct MatmulOutput {
  const PackedMatrix& matrix;
  const ActivationRows& in;
  const float* bias;
  float* out;
  size_t stride;
};

// Rows of tile `tile` of one token from their exact sums, rows 0 to 7 and 8 to 15 apart: one
// rounding to float, one product, perhaps one sum.
TANDEM_AVX512 inline void store_rows(const MatmulOutput& o, uint32_t tile, uint32_t token,
                                     __m512i first, __m512i second) {
  const __m512 sums = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(first)),
                                         _mm512_cvtepi64_ps(second), 1);
  const uint32_t row = tile * kTileRows;
  const __m512 scale =
      _mm512_mul_ps(_mm512_loadu_ps(&o.matrix.row_scales[row]),
                    _mm512_set1_ps(arithmetic::power_of_two(o.in.exponents[token])));
  const uint32_t rows = o.matrix.rows - row;
  const auto mask = static_cast<__mmask16>(rows >= kTileRows ? 0xffffU : (1U << rows) - 1);
  __m512 y = _mm512_mul_ps(sums, scale);
  if (o.bias != nullptr) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, o.bias + row));
  _mm512_mask_storeu_ps(o.out + token * o.stride + row, mask, y);
}

}  // namespace
}  // namespace tandem::kernels::cpu::avx512

#endif
