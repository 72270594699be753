// Products of 8-bit weights with AVX2: weights stored as w + 128 widen to 16 bits and meet the
// 16-bit activations in vpmaddwd, two products a lane and step:
//   sum w x = sum (w + 128) x - 128 * sum x.
// A lane grows by at most 2 * 255 * 32639 < 2^31 / 129 a step, so sums are widened every 128 steps.
#include "kernels/cpu/avx2_matmul.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

constexpr uint32_t kSegment = 128;

// The two lanes of each row, added in 64 bits.
TANDEM_AVX2 inline __m256i widen(__m256i sums) {
  const __m256i one = _mm256_set1_epi32(1);
  return _mm256_add_epi64(_mm256_mul_epi32(sums, one),
                          _mm256_mul_epi32(_mm256_srli_epi64(sums, 32), one));
}

template <int Tokens>
TANDEM_AVX2 void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const uint8_t* ahead) {
  const int16_t* x = o.in.values.data() + size_t{token} * o.in.padded;
  const size_t padded = o.in.padded;
  const uint8_t* w = o.matrix.tile(tile);
  const uint32_t steps = o.in.padded / 4;
  __m256i total[Tokens][4];
  for (int t = 0; t < Tokens; ++t) {
    for (int q = 0; q < 4; ++q) total[t][q] = _mm256_setzero_si256();
  }
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    __m256i sums[Tokens][4];
#pragma GCC unroll 4
    for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) sums[t][q] = _mm256_setzero_si256();
    }
    for (size_t step = begin; step < end; ++step) {
      touch(ahead + step * 64);
      __m256i values[Tokens];
#pragma GCC unroll 4
      for (int t = 0; t < Tokens; ++t) {
        int64_t four;
        std::memcpy(&four, x + t * padded + step * 4, 8);
        values[t] = _mm256_set1_epi64x(four);
      }
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const __m256i weights = _mm256_cvtepu8_epi16(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + step * 64 + q * 16)));
#pragma GCC unroll 4
        for (int t = 0; t < Tokens; ++t) {
          sums[t][q] = _mm256_add_epi32(sums[t][q], _mm256_madd_epi16(weights, values[t]));
        }
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) total[t][q] = _mm256_add_epi64(total[t][q], widen(sums[t][q]));
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    const auto index = token + static_cast<uint32_t>(t);
    const __m256i offset = _mm256_set1_epi64x(128 * o.in.sums[index]);
    for (int q = 0; q < 4; ++q) total[t][q] = _mm256_sub_epi64(total[t][q], offset);
    store_rows(o, tile, index, total[t]);
  }
}

}  // namespace

void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    // The first block touches the next tile; the others find everything in the cache.
    const uint8_t* ahead = in.tokens <= 2 ? matrix.tile(tile) + 4096 : matrix.tile(tile + 1);
    uint32_t token = 0;
    for (; token + 2 <= in.tokens; token += 2) {
      block<2>(o, tile, token, ahead);
      ahead = matrix.tile(tile);
    }
    if (token < in.tokens) block<1>(o, tile, token, ahead);
  }
}

}  // namespace tandem::kernels::cpu::avx2

#endif
