// What an instruction set provides to the CPU backend: one table of functions over plain memory.
// Sets may fill `prepared` of activations as they like; everything else has one layout for all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arithmetic/format.h"
#include "arithmetic/norm.h"
#include "arithmetic/rope.h"
#include "base/aligned.h"
#include "kernels/packed.h"

namespace tandem::kernels::cpu {

/// Quantized activations of the pass's tokens.
struct ActivationRows {
  uint32_t columns = 0;
  uint32_t padded = 0;  ///< padded_columns(columns); values there are zero
  uint32_t tokens = 0;
  AlignedArray<int16_t> values;    ///< [tokens][padded]
  std::vector<int32_t> exponents;  ///< [tokens]
  std::vector<int64_t> sums;       ///< [tokens]: sum of the token's values, set by prepare
  AlignedArray<uint8_t> prepared;  ///< the set's own form, `prepared_bytes(padded)` a token
};

/// Keys and values of one layer and kv head. Positions come in chunks of kChunk, blocks of
/// arithmetic::kBlock = 16 within; channels are padded to a multiple of 16 with zeros.
///   keys   of a block: [channel / 2][position 16][2]
///   values of a block: [position / 2 : 8][channel][2]
inline constexpr uint32_t kChunk = 256;

struct CacheView {
  uint32_t head_dim = 0;
  uint32_t padded_dim = 0;               ///< head_dim up to a multiple of 16
  std::span<const int16_t* const> keys;  ///< a pointer a chunk, to its first block
  std::span<const int16_t* const> values;
  std::span<const int16_t* const> key_exponents;  ///< a pointer a chunk, [kChunk]
  std::span<const int16_t* const> value_exponents;
};

/// Offset of a key's channel within its block, and of a value's.
inline size_t key_offset(uint32_t lane, uint32_t channel) {
  return size_t{channel / 2} * 32 + size_t{lane} * 2 + channel % 2;
}
inline size_t value_offset(uint32_t lane, uint32_t channel, uint32_t padded_dim) {
  return size_t{lane / 2} * padded_dim * 2 + size_t{channel} * 2 + lane % 2;
}

/// One query head at one position over positions [begin, end).
struct AttentionTask {
  const int16_t* query = nullptr;  ///< [padded_dim], zeros past head_dim
  int32_t query_exponent = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  float constant = 0;
};

/// A thread's memory for attention: grows as needed and is kept.
struct AttentionScratch {
  std::vector<int32_t> scores;
  std::vector<int32_t> shifts;
  std::vector<uint32_t> mantissas;
  AlignedArray<int64_t> sums;
};

struct CpuKernels {
  const char* isa;
  /// arithmetic::quantize.
  bool (*quantize)(const float* x, size_t n, int16_t* values, int32_t* exponent);
  /// arithmetic::rms_norm, layer_norm; scratch holds n values.
  bool (*rms_norm)(const float* x, const float* weight, const arithmetic::NormConstants& constants,
                   int16_t* scratch, float* y);
  bool (*layer_norm)(const float* x, const float* weight, const float* bias,
                     const arithmetic::NormConstants& constants, int16_t* scratch, float* y);
  /// Bytes a token of ActivationRows::prepared, and the step that fills it and `sums` for tokens
  /// [begin, end) from `values`.
  size_t (*prepared_bytes)(uint32_t padded);
  void (*prepare)(ActivationRows& rows, uint32_t begin, uint32_t end);
  /// out[t * stride + r] = scaled(dot(row r, token t)) (+ bias[r] if not null) for the rows of
  /// tiles [tile_begin, tile_end) and all tokens.
  void (*matmul)(const PackedMatrix& matrix, const ActivationRows& in, uint32_t tile_begin,
                 uint32_t tile_end, const float* bias, float* out, size_t stride);
  void (*add)(float* x, const float* y, size_t n);
  void (*gated_silu)(const float* gate, const float* up, size_t n, float* out);
  void (*gelu)(const float* x, size_t n, float* out);
  bool (*to_boundary)(const float* x, size_t n, uint16_t* half, int16_t* exponent);
  void (*from_boundary)(const uint16_t* half, size_t n, int16_t exponent, float* x);
  /// arithmetic::rotate over n values, n / 2 rotations; scratch holds n.
  int32_t (*rotate)(int16_t* x, size_t n, int32_t exponent, const arithmetic::Rotation* rotations,
                    int32_t* scratch);
  /// arithmetic::attention, out [head_dim].
  void (*attention)(const CacheView& cache, const AttentionTask& task, AttentionScratch& scratch,
                    float* out);
};

/// The reference: src/arithmetic, element by element.
const CpuKernels& scalar_kernels();
/// Null where the build has no such set (another processor family).
const CpuKernels* avx2_kernels();
const CpuKernels* avx512_kernels();

}  // namespace tandem::kernels::cpu
