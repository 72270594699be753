// The AVX-512 set (F, BW, DQ, VL, VNNI), one file a duty. Every function that uses the instructions
// carries TANDEM_AVX512 and is in an anonymous namespace or named below: no file is compiled with
// instruction-set flags, so no inline function of a shared header can end up with instructions
// that a machine lacks.
#pragma once

#include "kernels/cpu/cpu_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TANDEM_AVX512 \
  __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

namespace tandem::kernels::cpu::avx512 {

// Prepared form of a token for matmul. With x = 256 * high + low, both signed bytes:
//   [column / 4][low 4, high 4] bytes, then
//   [column / 64][low of group 0, of group 1, high of group 0, of group 1] 16-bit sums, then
//   [column] the 16-bit values: tokens lie an odd number of cache lines apart here, so that those
//   that are read together don't compete for the same places of the cache.
// The values are there from kFewestPanelTokens tokens on: fewer never meet panels.
constexpr uint32_t kFewestPanelTokens = 24;
size_t prepared_bytes(uint32_t padded);
constexpr size_t copy_offset(uint32_t padded) {
  return size_t{padded} * 2 + (size_t{padded} / 8 + 63) / 64 * 64;
}
void prepare(ActivationRows& rows, uint32_t begin, uint32_t end);
/// The planes and sums of groups of one token; returns the sum of its values.
int64_t prepare_token(const int16_t* values, uint32_t padded, uint8_t* planes);

void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride);
void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride);

/// Whether this processor fetches one ascending stream ahead better by itself than with lines that
/// the program touches: AMD's do, Intel's reach a quarter to a third more with touches. Measured on
/// Zen 4, Zen 5 and Granite Rapids.
bool fetches_streams_ahead();

/// matmul4 of one token and 4-bit weights.
void matvec4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out);
/// matmul4 by panels of weights expanded to 16 bits: the way for so many tokens that expanding them
/// costs little.
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

}  // namespace tandem::kernels::cpu::avx512

#endif
