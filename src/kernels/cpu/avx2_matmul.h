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
  const uint32_t row = tile * kTileRows;
  float* out = o.out + token * o.stride + row;
  __m128 rows[4];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) {
    const __m128 scale = _mm_mul_ps(_mm_loadu_ps(&o.matrix.row_scales[row + 4 * i]), power);
    rows[i] = _mm_mul_ps(round64(sums[i]), scale);
  }
  if (o.matrix.rows - row >= kTileRows) {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; ++i) {
      if (o.bias != nullptr) rows[i] = _mm_add_ps(rows[i], _mm_loadu_ps(o.bias + row + 4 * i));
      _mm_storeu_ps(out + 4 * i, rows[i]);
    }
    return;
  }
  float last[kTileRows];
  std::memcpy(last, rows, sizeof(last));
  for (uint32_t i = 0; i < o.matrix.rows - row; ++i) {
    out[i] = o.bias != nullptr ? last[i] + o.bias[row + i] : last[i];
  }
}

// Magnitudes of weights that a 32-bit sum holds products of.
inline constexpr int32_t kMostMagnitude = INT32_MAX / arithmetic::kMaxActivation;

// Sums of products of 16-bit weights and activations, `Tokens` tokens and 16 rows, eight a vector:
// what the registers hold.
inline constexpr int kMostTokens = 6;
template <int Tokens>
struct PairSums {
  __m256i of[Tokens][2];

  TANDEM_AVX2 inline void clear() {
#pragma GCC unroll 6
    for (int t = 0; t < Tokens; ++t) of[t][0] = of[t][1] = _mm256_setzero_si256();
  }

  // Adds the products of two columns: weights of rows 0 to 7 and 8 to 15, and the pair of each
  // token, `stride` values apart.
  TANDEM_AVX2 inline void add(__m256i first, __m256i second, const int16_t* pair, size_t stride) {
#pragma GCC unroll 6
    for (int t = 0; t < Tokens; ++t) {
      const __m256i values = broadcast4(pair + static_cast<size_t>(t) * stride);
      add_products(of[t][0], first, values);
      add_products(of[t][1], second, values);
    }
  }
};

// A token's sums of a tile in memory: for each half of the rows their upper 16 bits, signed, and
// the lower ones, each summed up in 32 bits. Those hold the sums of 32768 segments.
inline constexpr size_t kSplitSums = 32;

template <int Tokens>
TANDEM_AVX2 inline void add_split(const PairSums<Tokens>& sums, int32_t* split, size_t stride) {
  const __m256i lower = _mm256_set1_epi32(0xffff);
#pragma GCC unroll 6
  for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      int32_t* place = split + static_cast<size_t>(t) * stride + half * 16;
      const __m256i sum = sums.of[t][half];
      store(place, _mm256_add_epi32(load(place), _mm256_srai_epi32(sum, 16)));
      store(place + 8, _mm256_add_epi32(load(place + 8), _mm256_and_si256(sum, lower)));
    }
  }
}

// The 64-bit sums of a tile's rows, less `offset`, four a vector.
TANDEM_AVX2 inline void join_split(const int32_t* split, int64_t offset, __m256i* rows) {
  const __m256i less = _mm256_set1_epi64x(offset);
  for (int i = 0; i < 4; ++i) {
    const int32_t* upper = split + i / 2 * 16 + i % 2 * 4;
    const __m256i u =
        _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(upper)));
    const __m256i l =
        _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(upper + 8)));
    rows[i] = _mm256_sub_epi64(_mm256_add_epi64(_mm256_slli_epi64(u, 16), l), less);
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
