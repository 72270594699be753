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
  const ActivationView& in;
  const float* bias;
  float* out;
  size_t stride;
};

// Where the tiles that a block multiplies will have come to kBytesAhead later: far enough that
// memory has answered by then (measured: 4 KB ahead reach half of the bandwidth, 16 to 32 KB all of
// it).
inline constexpr uint32_t kBytesAhead = 24576;

struct Ahead {
  const uint8_t* tile;  ///< where step 0 will have come to
  uint32_t offset;      ///< steps into that tile
  uint32_t steps;       ///< of a tile

  /// The first of the `Tiles` tiles that `step`, which becomes a step of theirs, touches.
  template <int Tiles>
  [[nodiscard]] const uint8_t* at(size_t& step, size_t tile_bytes) const {
    step += offset;
    if (step < steps) return tile;
    step -= steps;
    return tile + Tiles * tile_bytes;
  }
};

// For a block of `tiles` tiles from `tile` on, each of which has `steps` steps of `step_bytes`.
inline Ahead look_ahead(const PackedMatrix& matrix, uint32_t tile, uint32_t tiles, uint32_t steps,
                        size_t step_bytes) {
  const auto far = static_cast<uint32_t>(kBytesAhead / step_bytes / tiles);
  return {matrix.data.data() + (tile + uint64_t{far / steps} * tiles) * matrix.tile_bytes(),
          far % steps, steps};
}

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
