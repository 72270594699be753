// Small pieces that the NEON files share.
#pragma once

#if defined(__aarch64__)

#include "kernels/cpu/neon.h"

namespace tandem::kernels::cpu::neon {
namespace {

// 64-bit integers below 2^53, exact in binary64, rounded once to binary32.
inline float32x4_t round64(int64x2_t first, int64x2_t second) {
  return vcvt_high_f32_f64(vcvt_f32_f64(vcvtq_f64_s64(first)), vcvtq_f64_s64(second));
}

// 2^exponent in each lane, exponents within [-126, 127].
inline float32x4_t power_of_two(int32x4_t exponent) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(exponent, vdupq_n_s32(127)), 23));
}

// constant - ((x * c + 2^17) >> 18); the rounding shift adds the half itself.
inline uint32x4_t horner_step(uint32_t constant, uint32x4_t x, uint32x4_t c) {
  return vsubq_u32(vdupq_n_u32(constant), vrshrq_n_u32(vmulq_u32(x, c), 18));
}

// arithmetic::exp2_fraction: every product fits 32 bits.
inline uint32x4_t exp2_fraction(uint32x4_t x) {
  const uint32x4_t c2 = horner_step(56773, x, vdupq_n_u32(30743));
  const uint32x4_t c1 = horner_step(62906, x, c2);
  const uint32x4_t c0 = horner_step(45426, x, c1);
  return vsubq_u32(vdupq_n_u32(65536), vrshrq_n_u32(vmulq_u32(x, c0), 16));
}

}  // namespace
}  // namespace tandem::kernels::cpu::neon

#endif
