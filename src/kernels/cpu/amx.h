// The AMX set: the AVX-512 set, whose products of several tokens are done in tiles of 16 rows of 64
// bytes. Like there, every function that uses the instructions is in an anonymous namespace or
// named below.
#pragma once

#include "kernels/cpu/cpu_kernels.h"

#if defined(__x86_64__) && defined(__linux__)

#include "kernels/cpu/avx512.h"

namespace tandem::kernels::cpu::amx {

// Prepared form of a token: that of the AVX-512 set, and where passes have at least
// kFewestTokens tokens, in place of the values at avx512::copy_offset,
//   [column] low bytes, then [column] high ones,
// which are rows of tiles as they are.
constexpr uint32_t kFewestTokens = 7;
void prepare(ActivationRows& rows, uint32_t begin, uint32_t end);

/// From how many tokens on the products below are faster than AVX-512's: at least kFewestTokens.
constexpr uint32_t fewest_tokens(WeightFormat format) {
  return format == WeightFormat::k8 ? kFewestTokens : 8;
}
void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride);
void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride);

/// Whether the system lets this process use tile registers, which must be asked for once. Any
/// thread.
bool permitted();

}  // namespace tandem::kernels::cpu::amx

#endif
