// The NEON family, one file a duty: three sets of kernels for AArch64 with one implementation of
// everything but the products.
//   neon     any AArch64 processor: 16-bit multiply-adds (smlal)
//   dotprod  with the dot products of Armv8.2 (sdot)
//   i8mm     with the 8-bit matrix products of Armv8.6 (smmla, usmmla)
// As with the x86 sets, every function that uses an extension carries its attribute; no file is
// compiled with instruction-set flags. An attribute names a whole architecture, since GCC inlines
// no intrinsic into a function that names the extension alone.
#pragma once

#include "kernels/cpu/cpu_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#define TANDEM_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#define TANDEM_I8MM __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))

namespace tandem::kernels::cpu::neon {

// Prepared form of a token for the sets dotprod and i8mm. With x = 256 * high + low, both signed
// bytes:
//   [column / 8][low 8, high 8] bytes, then
//   [column / 32] 32-bit sums of a group's x.
// The set neon meets the 16-bit values themselves and prepares nothing but the token's sum.
constexpr size_t planes_bytes(uint32_t padded) {
  return size_t{padded} * 2 + size_t{padded} / arithmetic::kGroup * sizeof(int32_t);
}

void matmul(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
            uint32_t tile_end, const float* bias, float* out, size_t stride);
void dotprod_matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                     uint32_t tile_end, const float* bias, float* out, size_t stride);
void dotprod_matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                     uint32_t tile_end, const float* bias, float* out, size_t stride);
void i8mm_matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                  uint32_t tile_end, const float* bias, float* out, size_t stride);
void i8mm_matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                  uint32_t tile_end, const float* bias, float* out, size_t stride);

bool quantize(const float* x, size_t n, int16_t* values, int32_t* exponent);
bool rms_norm(const float* x, const float* weight, const arithmetic::NormConstants& constants,
              int16_t* scratch, float* y);
bool layer_norm(const float* x, const float* weight, const float* bias,
                const arithmetic::NormConstants& constants, int16_t* scratch, float* y);
void add(float* x, const float* y, size_t n);
void gated_silu(const float* gate, const float* up, size_t n, float* out);
void gelu(const float* x, size_t n, float* out);
void clamped_swiglu(const float* gate, const float* up, size_t n, float alpha, float limit,
                    float* out);
void weighted_sum(const float* const* rows, const float* weights, size_t count, size_t n,
                  float* out);
bool to_boundary(const float* x, size_t n, uint16_t* half, int16_t* exponent);
void from_boundary(const uint16_t* half, size_t n, int16_t exponent, float* x);
int32_t rotate(int16_t* x, size_t n, int32_t exponent, const arithmetic::Rotation* rotations,
               int32_t* scratch);
bool attention(const CacheView& cache, const AttentionTask& task, ThreadPool* pool,
               AttentionScratch& scratch, float* out);

}  // namespace tandem::kernels::cpu::neon

#endif
