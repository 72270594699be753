// What the products of 4- and 6-bit weights share: the multipliers of a step's two groups.
#pragma once

#if defined(__x86_64__)

#include "kernels/cpu/avx512_matmul.h"

namespace tandem::kernels::cpu::avx512 {

namespace {

// 16 bytes as 32-bit integers.
TANDEM_AVX512 inline __m512i widen(const uint8_t* bytes) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// Lanes of at most 16 bits in both their halves.
TANDEM_AVX512 inline __m512i twice(__m512i x) {
  return _mm512_or_si512(x, _mm512_slli_epi32(x, 16));
}

// Bytes of a step's quants, lines of the cache all of them.
template <WeightFormat Format>
inline constexpr size_t kStepBytes = Format == WeightFormat::k4 ? 512 : 768;

// Scale and minimum of a step's two groups, 16 rows each, as 32-bit integers.
struct GroupMultipliers {
  __m512i scale[2];
  __m512i minimum[2];
};

template <WeightFormat Format>
TANDEM_AVX512 inline GroupMultipliers group_multipliers(const uint8_t* scales) {
  GroupMultipliers m;
  if constexpr (Format == WeightFormat::k4) {
    const __m512i rest = widen(scales + 32);
    for (int g = 0; g < 2; ++g) {
      const __m512i byte = widen(scales + g * 16);
      const __m512i high =
          g == 0 ? _mm512_and_si512(rest, _mm512_set1_epi32(15)) : _mm512_srli_epi32(rest, 4);
      m.scale[g] = _mm512_and_si512(byte, _mm512_set1_epi32(63));
      m.minimum[g] = _mm512_or_si512(_mm512_srli_epi32(byte, 6), _mm512_slli_epi32(high, 2));
    }
  } else {
    for (int g = 0; g < 2; ++g) {
      m.scale[g] = widen(scales + g * 16);
      m.minimum[g] = _mm512_slli_epi32(m.scale[g], 2);
    }
  }
  return m;
}

}  // namespace
}  // namespace tandem::kernels::cpu::avx512

#endif
