// What the products of 4- and 6-bit weights of the AVX2 set share: multipliers and quants.
#pragma once

#if defined(__x86_64__)

#include "kernels/cpu/avx2_matmul.h"

namespace tandem::kernels::cpu::avx2 {
namespace {

// Bytes of a step's quants, lines of the cache all of them.
template <WeightFormat Format>
inline constexpr size_t kStepBytes = Format == WeightFormat::k4 ? 512 : 768;

// Eight bytes as 32-bit integers.
TANDEM_AVX2 inline __m256i widen(const uint8_t* bytes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}

// Pairs of 16 bits from two vectors of 32-bit integers below 2^16.
TANDEM_AVX2 inline __m256i pairs(__m256i first, __m256i second) {
  return _mm256_or_si256(first, _mm256_slli_epi32(second, 16));
}

// Scale and minimum of a step's two groups, eight rows each (half 0 or 1 of a tile's), as 32-bit
// integers: a weight is scale * quant - 8 minimum.
struct GroupMultipliers {
  __m256i scale[2];
  __m256i minimum[2];
};

template <WeightFormat Format>
TANDEM_AVX2 inline GroupMultipliers group_multipliers(const uint8_t* scales, int half) {
  GroupMultipliers m;
  const uint8_t* own = scales + half * 8;
  if constexpr (Format == WeightFormat::k4) {
    const __m256i rest = widen(own + 32);
    const __m256i high[2] = {_mm256_and_si256(rest, _mm256_set1_epi32(15)),
                             _mm256_srli_epi32(rest, 4)};
    for (int g = 0; g < 2; ++g) {
      const __m256i byte = widen(own + g * 16);
      m.scale[g] = _mm256_and_si256(byte, _mm256_set1_epi32(63));
      m.minimum[g] = _mm256_or_si256(_mm256_srli_epi32(byte, 6), _mm256_slli_epi32(high[g], 2));
    }
  } else {
    for (int g = 0; g < 2; ++g) {
      m.scale[g] = widen(own + g * 16);
      m.minimum[g] = _mm256_slli_epi32(m.scale[g], 2);
    }
  }
  return m;
}

// Quants of eight rows as 16-bit pairs: pair `index` of chunk `chunk`'s columns (0, 2), (1, 3),
// (4, 6) and (5, 7). `low` and `high`: of the step, those rows.
template <WeightFormat Format>
TANDEM_AVX2 inline __m256i quant_pair(const uint8_t* low, const uint8_t* high, size_t chunk,
                                      int index) {
  const __m256i nibble = _mm256_set1_epi16(15);
  const __m256i bytes = load(low + PackedStep::low_of(Format, chunk));
  __m256i quants = _mm256_srli_epi16(bytes, 12);
  if (index == 0) quants = _mm256_and_si256(bytes, nibble);
  if (index == 1) quants = _mm256_and_si256(_mm256_srli_epi16(bytes, 8), nibble);
  if (index == 2) quants = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
  if constexpr (Format == WeightFormat::k6) {
    const __m256i bits = load(high + PackedStep::high_of(chunk));
    __m256i part = bits;
    if (chunk % 2 == 0) {
      if (index == 0) part = _mm256_slli_epi16(bits, 4);
      if (index == 1) part = _mm256_srli_epi16(bits, 4);
      if (index == 2) part = _mm256_slli_epi16(bits, 2);
      if (index == 3) part = _mm256_srli_epi16(bits, 6);
    } else {
      if (index == 1) part = _mm256_srli_epi16(bits, 8);
      if (index == 2) part = _mm256_srli_epi16(bits, 2);
      if (index == 3) part = _mm256_srli_epi16(bits, 10);
    }
    quants = _mm256_or_si256(quants, _mm256_and_si256(part, _mm256_set1_epi16(0x30)));
  }
  return quants;
}

}  // namespace
}  // namespace tandem::kernels::cpu::avx2

#endif
