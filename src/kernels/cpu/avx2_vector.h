// Small pieces that the AVX2 files share.
#pragma once

#if defined(__x86_64__)

#include <cstring>

#include "kernels/cpu/avx2.h"

namespace tandem::kernels::cpu::avx2 {
namespace {

TANDEM_AVX2 inline __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
TANDEM_AVX2 inline void store(void* p, __m256i x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x);
}

// Four bytes in every 32-bit lane.
TANDEM_AVX2 inline __m256i broadcast4(const void* bytes) {
  int32_t value;
  std::memcpy(&value, bytes, 4);
  return _mm256_set1_epi32(value);
}

// sum += a * b, two products of 16-bit integers a lane. As instructions, not as intrinsics: GCC 12
// adds several products to each other first, runs out of registers and keeps the sums on the stack,
// which costs up to half the speed.
TANDEM_AVX2 inline void add_products(__m256i& sum, __m256i a, __m256i b) {
  __m256i products;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
}

// 64-bit integers below 2^51 as binary32, rounded once: a binary64 whose last place is 1 holds
// them exactly.
TANDEM_AVX2 inline __m128 round64(__m256i n) {
  const __m256i magic = _mm256_set1_epi64x(0x4338000000000000);  // 2^52 + 2^51
  return _mm256_cvtpd_ps(
      _mm256_sub_pd(_mm256_castsi256_pd(_mm256_add_epi64(n, magic)), _mm256_castsi256_pd(magic)));
}

// constant - ((x * c + 2^17) >> 18).
TANDEM_AVX2 inline __m256i horner_step(int constant, __m256i x, __m256i c) {
  const __m256i product = _mm256_add_epi32(_mm256_mullo_epi32(x, c), _mm256_set1_epi32(1 << 17));
  return _mm256_sub_epi32(_mm256_set1_epi32(constant), _mm256_srli_epi32(product, 18));
}

// arithmetic::exp2_fraction: every product fits 32 bits.
TANDEM_AVX2 inline __m256i exp2_fraction(__m256i x) {
  const __m256i c2 = horner_step(56773, x, _mm256_set1_epi32(30743));
  const __m256i c1 = horner_step(62906, x, c2);
  const __m256i c0 = horner_step(45426, x, c1);
  const __m256i last = _mm256_add_epi32(_mm256_mullo_epi32(x, c0), _mm256_set1_epi32(1 << 15));
  return _mm256_sub_epi32(_mm256_set1_epi32(65536), _mm256_srli_epi32(last, 16));
}

// Two vectors of 32-bit integers as 16-bit ones; each fits (signed).
TANDEM_AVX2 inline __m256i narrow(__m256i first, __m256i second) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
}

}  // namespace
}  // namespace tandem::kernels::cpu::avx2

#endif
