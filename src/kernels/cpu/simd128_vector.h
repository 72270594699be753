// Small pieces that the SIMD128 files share.
#pragma once

#if defined(__wasm_simd128__)

#include <cstring>

#include "kernels/cpu/simd128.h"

namespace tandem::kernels::cpu::simd128 {
namespace {

inline v128_t load(const void* p) {
  return wasm_v128_load(p);
}
inline void store(void* p, v128_t x) {
  wasm_v128_store(p, x);
}

// A number in every 16-bit lane that stays in a register: a constant would be repeated at each use,
// where engines build it anew from immediates.
inline v128_t held16(int32_t number) {
  __asm__("" : "+r"(number));
  return wasm_i16x8_splat(static_cast<int16_t>(number));
}

// 32-bit lanes 0 and 2, and 1 and 3, of two vectors.
inline v128_t even_lanes(v128_t a, v128_t b) {
  return wasm_i32x4_shuffle(a, b, 0, 2, 4, 6);
}
inline v128_t odd_lanes(v128_t a, v128_t b) {
  return wasm_i32x4_shuffle(a, b, 1, 3, 5, 7);
}

// Two vectors of 64-bit integers below 2^51 as four binary32, rounded once: a binary64 whose last
// place is 1 holds them exactly.
inline v128_t round64(v128_t first, v128_t second) {
  const v128_t magic = wasm_i64x2_const_splat(0x4338000000000000);  // 2^52 + 2^51
  const v128_t a =
      wasm_f32x4_demote_f64x2_zero(wasm_f64x2_sub(wasm_i64x2_add(first, magic), magic));
  const v128_t b =
      wasm_f32x4_demote_f64x2_zero(wasm_f64x2_sub(wasm_i64x2_add(second, magic), magic));
  return wasm_i64x2_shuffle(a, b, 0, 2);
}

// Nearest integers, ties to even, of |x| <= 2^22: a binary32 whose last place is 1 holds them.
inline v128_t round_small(v128_t x) {
  const v128_t magic = wasm_f32x4_const_splat(12582912.0F);  // 2^23 + 2^22
  return wasm_i32x4_sub(wasm_f32x4_add(x, magic), magic);
}

// 2^exponent in each lane, exponents within [-126, 127].
inline v128_t power_of_two(v128_t exponent) {
  return wasm_i32x4_shl(wasm_i32x4_add(exponent, wasm_i32x4_const_splat(127)), 23);
}

// constant - ((x * c + 2^17) >> 18).
inline v128_t horner_step(int constant, v128_t x, v128_t c) {
  const v128_t product = wasm_i32x4_add(wasm_i32x4_mul(x, c), wasm_i32x4_const_splat(1 << 17));
  return wasm_i32x4_sub(wasm_i32x4_splat(constant), wasm_u32x4_shr(product, 18));
}

// arithmetic::exp2_fraction: every product fits 32 bits.
inline v128_t exp2_fraction(v128_t x) {
  const v128_t c2 = horner_step(56773, x, wasm_i32x4_const_splat(30743));
  const v128_t c1 = horner_step(62906, x, c2);
  const v128_t c0 = horner_step(45426, x, c1);
  const v128_t last = wasm_i32x4_add(wasm_i32x4_mul(x, c0), wasm_i32x4_const_splat(1 << 15));
  return wasm_i32x4_sub(wasm_i32x4_const_splat(65536), wasm_u32x4_shr(last, 16));
}

}  // namespace
}  // namespace tandem::kernels::cpu::simd128

#endif
