// The AVX2 set (with F16C, without VNNI), one file a duty. As with the AVX-512 set, every function
// that uses the instructions carries its attribute; no file is compiled with instruction-set flags.
#pragma once

#include "kernels/cpu/cpu_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TANDEM_AVX2 __attribute__((target("avx2,f16c")))

namespace tandem::kernels::cpu::avx2 {

// Prepared form of a token. With x = 256 * high + low, both signed bytes:
//   [column / 4][low 4, high 4] bytes, then
//   [column / 64] kStepSums bytes of sums over the two groups: those of low of group 0, of group 1,
//     of high of group 0, of group 1, 16 bits each; 8 times those of x, of both groups the lower 16
//     bits, signed, and what they leave of both, / 65536; -32 times those of x, 32 bits each; then
//   [column / 4][columns 0, 2, 1, 3] the 16-bit values: even and odd bytes of weights become 16-bit
//   integers by a mask and a shift, and meet pairs of them. Tokens lie an odd number of cache lines
//   apart, so that those that are read together don't compete for the same places of the cache.
constexpr size_t kStepSums = 24;
size_t prepared_bytes(uint32_t padded);
constexpr size_t pairs_offset(uint32_t padded) {
  return size_t{padded} * 2 + (size_t{padded} / 64 * kStepSums + 63) / 64 * 64;
}
void prepare(ActivationRows& rows, uint32_t begin, uint32_t end);

void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride);
void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride);
/// matmul4 of one token.
void matvec4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out);
/// Products by panels of weights expanded to 16 bits: the way for so many tokens that expanding
/// them costs little.
void matmul_panels(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                   uint32_t tile_end, const float* bias, float* out, size_t stride);

bool quantize(const float* x, size_t n, int16_t* values, int32_t* exponent);
bool rms_norm(const float* x, const float* weight, const arithmetic::NormConstants& constants,
              int16_t* scratch, float* y);
bool layer_norm(const float* x, const float* weight, const float* bias,
                const arithmetic::NormConstants& constants, int16_t* scratch, float* y);
void add(float* x, const float* y, size_t n);
void gated_silu(const float* gate, const float* up, size_t n, float* out);
void gelu(const float* x, size_t n, float* out);
void delta(const DeltaTask& task);
void convolve(const float* rows, size_t stride, const float* weights, uint32_t kernel, size_t n,
              float* out);
bool unit_vector(const float* x, size_t n, int16_t* scratch, float* y);
void gate(const float* gate, size_t n, float* x);
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

}  // namespace tandem::kernels::cpu::avx2

#endif
