// Small pieces that the AVX-512 files share.
#pragma once

#if defined(__x86_64__)

#include <cstring>

#include "kernels/cpu/avx512.h"

namespace tandem::kernels::cpu::avx512 {
namespace {

struct Four {
  uint8_t bytes[4];
};

// Four bytes in every lane.
TANDEM_AVX512 inline __m512i broadcast4(const uint8_t* bytes) {
  int32_t value;
  std::memcpy(&value, bytes, 4);
  return _mm512_set1_epi32(value);
}

// sum += a * b, four products of unsigned and signed bytes a lane. As an instruction, not as
// _mm512_dpbusd_epi32: GCC 12 copies that one's accumulator to another register each time, runs
// out of them and keeps half the sums on the stack, which costs half the speed.
TANDEM_AVX512 inline void add_products(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// The same with four bytes from memory in every lane.
TANDEM_AVX512 inline void add_products(__m512i& sum, __m512i a, const uint8_t* b) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(a), "m"(*reinterpret_cast<const Four*>(b)));
}

// Into the second cache. As an instruction, not as _mm_prefetch: GCC 12 takes a function that does
// nothing else for one without effect, and drops the call.
TANDEM_AVX512 inline void touch(const uint8_t* line) {
  asm volatile("prefetcht1 %0" : : "m"(*line));
}

// The same for pairs of 16-bit integers.
TANDEM_AVX512 inline void add_pairs(__m512i& sum, __m512i a, const uint8_t* b) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(a), "m"(*reinterpret_cast<const Four*>(b)));
}

TANDEM_AVX512 inline void add_pairs(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// 256 * high + low of eight lanes, in 64 bits.
TANDEM_AVX512 inline __m512i combine_planes(__m256i low, __m256i high) {
  return _mm512_add_epi64(_mm512_cvtepi32_epi64(low),
                          _mm512_slli_epi64(_mm512_cvtepi32_epi64(high), 8));
}

// constant - ((x * c + 2^17) >> 18).
TANDEM_AVX512 inline __m512i horner_step(int constant, __m512i x, __m512i c) {
  const __m512i product = _mm512_add_epi32(_mm512_mullo_epi32(x, c), _mm512_set1_epi32(1 << 17));
  return _mm512_sub_epi32(_mm512_set1_epi32(constant), _mm512_srli_epi32(product, 18));
}

// arithmetic::exp2_fraction: every product fits 32 bits.
TANDEM_AVX512 inline __m512i exp2_fraction(__m512i x) {
  const __m512i c2 = horner_step(56773, x, _mm512_set1_epi32(30743));
  const __m512i c1 = horner_step(62906, x, c2);
  const __m512i c0 = horner_step(45426, x, c1);
  const __m512i last = _mm512_add_epi32(_mm512_mullo_epi32(x, c0), _mm512_set1_epi32(1 << 15));
  return _mm512_sub_epi32(_mm512_set1_epi32(65536), _mm512_srli_epi32(last, 16));
}

}  // namespace
}  // namespace tandem::kernels::cpu::avx512

#endif
