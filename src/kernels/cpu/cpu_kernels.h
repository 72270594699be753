// What an instruction set provides to the CPU backend: one table of functions over plain memory.
// Sets may fill `prepared` of activations as they like; everything else has one layout for all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arithmetic/attention.h"
#include "arithmetic/format.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"
#include "arithmetic/rope.h"
#include "base/aligned.h"
#include "base/result.h"
#include "base/thread_pool.h"
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

/// Some consecutive ones of them, in memory that belongs to somebody else.
struct ActivationView {
  uint32_t columns = 0;
  uint32_t padded = 0;
  uint32_t tokens = 0;
  std::span<const int16_t> values;
  std::span<const int32_t> exponents;
  std::span<const int64_t> sums;
  std::span<const uint8_t> prepared;

  ActivationView() = default;
  /// All of them: products take rows or a view.
  ActivationView(const ActivationRows& rows)  // NOLINT(google-explicit-constructor)
      : columns(rows.columns),
        padded(rows.padded),
        tokens(rows.tokens),
        values(rows.values.data(), rows.values.size()),
        exponents(rows.exponents),
        sums(rows.sums),
        prepared(rows.prepared.data(), rows.prepared.size()) {}
  /// Rows [first, first + count), each with `prepared_bytes` of its prepared form.
  ActivationView(const ActivationRows& rows, uint32_t first, uint32_t count, size_t prepared_bytes)
      : ActivationView(rows) {
    tokens = count;
    values = values.subspan(size_t{first} * padded);
    exponents = exponents.subspan(first);
    sums = sums.subspan(first);
    prepared = prepared.subspan(first * prepared_bytes);
  }
};

/// Keys and values of one layer and kv head. Positions come in chunks of kChunk, blocks of
/// arithmetic::kBlock = 16 within; channels are padded to a multiple of 16 with zeros.
///   keys   of a block: [channel / 2][position 16][2]
///   values of a block: [position / 2 : 8][channel][2]
inline constexpr uint32_t kChunk = 256;

struct CacheView {
  uint32_t head_dim = 0;
  uint32_t padded_dim = 0;               ///< head_dim up to a multiple of 16
  uint32_t bits = 16;                    ///< of a key or value: 16, or 8 in the same order
  std::span<const int16_t* const> keys;  ///< a pointer a chunk, to its first block
  std::span<const int16_t* const> values;
  std::span<const int16_t* const> key_exponents;  ///< a pointer a chunk, [kChunk]
  std::span<const int16_t* const> value_exponents;
  /// Of 8 bits, less one (arithmetic::narrow): a pointer a chunk, [block][group][position 16].
  std::span<const uint8_t* const> key_multipliers = {};
  std::span<const uint8_t* const> value_multipliers = {};

  [[nodiscard]] uint32_t groups() const {
    return (padded_dim + arithmetic::kNarrowGroup - 1) / arithmetic::kNarrowGroup;
  }
};

/// Offset of a key's channel within its block, and of a value's.
constexpr size_t key_offset(uint32_t lane, uint32_t channel) {
  return size_t{channel / 2} * 32 + size_t{lane} * 2 + channel % 2;
}
constexpr size_t value_offset(uint32_t lane, uint32_t channel, uint32_t padded_dim) {
  return size_t{lane / 2} * padded_dim * 2 + size_t{channel} * 2 + lane % 2;
}

/// The query heads of one kv head for some consecutive tokens of a pass: they share what is read of
/// the cache. Head h of token t is at queries + t * query_stride + h * padded_dim, its exponent at
/// exponents[t * exponent_stride + h], its result at out + t * out_stride + h * head_dim.
struct AttentionTask {
  const int16_t* queries = nullptr;  ///< padded_dim values a head, zeros past head_dim
  const int32_t* exponents = nullptr;
  size_t query_stride = 0;
  size_t exponent_stride = 0;
  size_t out_stride = 0;
  uint32_t tokens = 1;
  uint32_t heads = 1;
  uint32_t position = 0;           ///< of the first token
  uint32_t window = 0;             ///< positions seen, the own one included; 0: all
  float constant = 0;              ///< arithmetic::score_constant
  const int32_t* sinks = nullptr;  ///< arithmetic::sink_score of each head; null: none

  [[nodiscard]] int32_t sink(uint32_t head) const {
    return sinks != nullptr ? sinks[head] : arithmetic::kNoSink;
  }
  /// Positions [begin, end) that token t sees.
  [[nodiscard]] uint32_t end(uint32_t t) const { return position + t + 1; }
  [[nodiscard]] uint32_t begin(uint32_t t) const {
    return window != 0 && end(t) > window ? end(t) - window : 0;
  }
};

/// A thread's memory for attention: grows as needed and is kept. 18 MB at the longest context, and
/// an eighth to grow into.
struct AttentionScratch {
  AlignedArray<uint8_t> memory;

  /// At least `bytes`, contents undefined; null if memory is exhausted.
  uint8_t* reserve(size_t bytes) {
    if (memory.size() < bytes) {
      memory = AlignedArray<uint8_t>();
      memory = AlignedArray<uint8_t>(bytes + bytes / 8 + 16384);
    }
    return memory.data();
  }
};

/// arithmetic::delta_step of one block of kStateColumns columns for some consecutive tokens.
struct DeltaTask {
  const float* from = nullptr;  ///< [key_dim][kStateColumns], the state before the first token
  float* to = nullptr;          ///< the state after the last one
  uint32_t key_dim = 0;
  uint32_t tokens = 0;
  const float* keys = nullptr;     ///< a token's: key_dim values
  const float* queries = nullptr;  ///< likewise; null: only the state advances
  const float* values = nullptr;   ///< a token's: kStateColumns values
  const float* gates = nullptr;    ///< a token's: decay and rate
  float* out = nullptr;            ///< a token's: kStateColumns values
  size_t key_stride = 0;
  size_t query_stride = 0;
  size_t value_stride = 0;
  size_t gate_stride = 0;
  size_t out_stride = 0;
  float scale = 0;
};

/// The steps of gated delta nets from src/arithmetic, for sets that have no faster ones.
void plain_delta(const DeltaTask& task);
void plain_convolve(const float* rows, size_t stride, const float* weights, uint32_t kernel,
                    size_t n, float* out);
bool plain_unit_vector(const float* x, size_t n, int16_t* scratch, float* y);
void plain_gate(const float* gate, size_t n, float* x);

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
  void (*matmul)(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                 uint32_t tile_end, const float* bias, float* out, size_t stride);
  void (*add)(float* x, const float* y, size_t n);
  void (*gated_silu)(const float* gate, const float* up, size_t n, float* out);
  void (*gelu)(const float* x, size_t n, float* out);
  bool (*to_boundary)(const float* x, size_t n, uint16_t* half, int16_t* exponent);
  void (*from_boundary)(const uint16_t* half, size_t n, int16_t exponent, float* x);
  /// arithmetic::rotate over n values, n / 2 rotations; scratch holds n.
  int32_t (*rotate)(int16_t* x, size_t n, int32_t exponent, const arithmetic::Rotation* rotations,
                    int32_t* scratch);
  /// arithmetic::attention for each of the task's heads and tokens, on all threads of `pool`, which
  /// split the positions, or on the caller's if it is null. False if there is no memory.
  bool (*attention)(const CacheView& cache, const AttentionTask& task, ThreadPool* pool,
                    AttentionScratch& scratch, float* out);
  /// arithmetic::clamped_swiglu.
  void (*clamped_swiglu)(const float* gate, const float* up, size_t n, float alpha, float limit,
                         float* out);
  /// arithmetic::weighted_sum of `count` rows.
  void (*weighted_sum)(const float* const* rows, const float* weights, size_t count, size_t n,
                       float* out);
  /// arithmetic::delta_step, token by token.
  void (*delta)(const DeltaTask& task) = plain_delta;
  /// arithmetic::convolve of n channels: rows of `stride` values, weights [kernel][n].
  void (*convolve)(const float* rows, size_t stride, const float* weights, uint32_t kernel,
                   size_t n, float* out) = plain_convolve;
  /// arithmetic::unit_vector; scratch holds n values.
  bool (*unit_vector)(const float* x, size_t n, int16_t* scratch, float* y) = plain_unit_vector;
  /// x *= logistic(gate).
  void (*gate)(const float* gate, size_t n, float* x) = plain_gate;
};

/// The reference: src/arithmetic, element by element.
const CpuKernels& scalar_kernels();
/// Null where the build has no such set (another processor family).
const CpuKernels* avx2_kernels();
const CpuKernels* avx512_kernels();
const CpuKernels* amx_kernels();
const CpuKernels* neon_kernels();
const CpuKernels* dotprod_kernels();
const CpuKernels* i8mm_kernels();
const CpuKernels* simd128_kernels();

/// A set by name; null where this machine or build has none.
struct KernelSet {
  const char* name;
  const CpuKernels* kernels;
};
/// Every set that there is, the fastest of a processor family first and the reference last.
std::span<const KernelSet> kernel_sets();
/// The names of all sets, for messages: "i8mm, dotprod, …, scalar".
std::string kernel_set_names();
/// A set of this machine by its name. Errors: kUnsupported if this machine or build has no such
/// set, kInvalid for an unknown name.
Result<const CpuKernels*> find_kernels(std::string_view name);

}  // namespace tandem::kernels::cpu
