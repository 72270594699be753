// The set for WebAssembly's 128-bit vectors, one file a duty. Plain SIMD128 only: relaxed
// instructions may give other bits on other machines.
#pragma once

#if defined(__wasm_simd128__)

#include <wasm_simd128.h>

#include "kernels/cpu/cpu_kernels.h"

// Engines compile a function anew, with optimizations, when it has been entered often enough. What
// was inlined into a loop that is never left stays slow: a kernel must be a function of its own.
#define TANDEM_KERNEL __attribute__((noinline))

namespace tandem::kernels::cpu::simd128 {

// Prepared form of a token, for 4- and 6-bit weights: the sum of each group of 32 values, as 32-bit
// integers (|sum| <= 32 * 32639 < 2^20). All weights meet the 16-bit values themselves.
size_t prepared_bytes(uint32_t padded);
void prepare(ActivationRows& rows, uint32_t begin, uint32_t end);

void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride);
void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
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

}  // namespace tandem::kernels::cpu::simd128

#endif
