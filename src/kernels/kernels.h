// The table of functions that a backend fills: the steps of a forward pass over buffer handles.
// A CPU backend executes a step when it is called; a GPU backend records it and submits the pass at
// finish(). Every backend gives the bits that src/arithmetic defines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arithmetic/norm.h"
#include "arithmetic/rope.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/packed.h"
#include "kernels/recurrent.h"

namespace tandem::kernels {

/// Handles to what a backend owns. Made by that backend, valid as long as it lives.
struct Matrix {
  uint32_t id = 0;
};  ///< packed weights [rows, columns]
struct Vector {
  uint32_t id = 0;
};  ///< binary32 [n]: norm weights, biases
struct Floats {
  uint32_t id = 0;
};  ///< binary32 [tokens of the pass, columns]
struct Activations {
  uint32_t id = 0;
};  ///< 16-bit integers with an exponent a token, likewise
struct Heads {
  uint32_t id = 0;
};  ///< 16-bit [tokens, heads, head_dim], an exponent a head

/// What a KV cache holds.
struct CacheOptions {
  uint32_t bits = 16;             ///< of a key's or value's channel: 16, or 8 (arithmetic::narrow)
  std::vector<uint32_t> windows;  ///< positions each layer sees, 0: all; empty: all see all
  /// Positions that memory may be taken for before they are asked for, so that what is read
  /// together lies together; 0: none.
  uint32_t context = 0;
};

/// Positions that layers with a window keep beyond what the window sees, for a rollback.
inline constexpr uint32_t kWindowMargin = 1024;

/// Keys and values of a conversation's layers, with an exponent a position and head.
/// Owned by the caller, filled by the backend's steps. Not thread-safe.
///
/// A rollback is the caller's own business: what comes later overwrites. Layers that see all
/// positions allow one to any length. Layers with a window hold only what the window sees from
/// floor() on, so a rollback may go to floor() and above, or to 0 by clear().
class KvCache {
 public:
  KvCache() = default;
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  virtual ~KvCache() = default;

  /// Makes room for `positions` positions in all, in every layer. Error: kMemory.
  [[nodiscard]] virtual Status reserve(uint32_t positions) = 0;
  /// CacheOptions::bits.
  [[nodiscard]] virtual uint32_t bits() const = 0;
  /// Says that no pass will begin below `floor` again: layers with a window let go of what no such
  /// pass sees. Call it before reserve(), which then finds that memory.
  virtual void release(uint32_t floor) = 0;
  /// The least length, other than 0, that everything needed is still there for.
  [[nodiscard]] virtual uint32_t floor() const = 0;
  /// Forgets everything, but keeps the memory.
  virtual void clear() = 0;
  /// The first position of a layer that passes from `length` on see.
  [[nodiscard]] virtual uint32_t first_seen(uint32_t layer, uint32_t length) const = 0;
  /// Bytes held now.
  [[nodiscard]] virtual uint64_t bytes() const = 0;

  /// Values of one position of a layer as they are exported: for each kv head the exponents of key
  /// and value, the key, the value.
  [[nodiscard]] virtual uint32_t position_values() const = 0;
  /// Positions [first, first + count) of a layer, which must be held.
  virtual void export_positions(uint32_t layer, uint32_t first, uint32_t count,
                                std::span<int16_t> out) const = 0;
  /// The way back, into positions that room was made for. Error: kInvalid if a number is none that
  /// a key or value has.
  [[nodiscard]] virtual Status import_positions(uint32_t layer, uint32_t first, uint32_t count,
                                                std::span<const int16_t> in) = 0;
};

/// One product of a matmul step: out[t][r] = scaled(dot(matrix row r, in[t])) (+ bias[r]).
struct Product {
  Matrix matrix;
  Floats out;
  bool has_bias = false;
  Vector bias;
};

/// A norm of a row or of a head.
struct Norm {
  bool layer = false;  ///< layer norm with bias; otherwise RMS norm
  Vector weight;
  Vector bias;
  arithmetic::NormConstants constants;
};

/// How heads are rotated. Where only their first channels are, a head is kept in the order that
/// pairs channel i with i + head_dim / 2: the first half of the rotated channels, the first half of
/// the rest, then both second halves. Scores don't depend on the order.
struct Rotary {
  bool enabled = false;
  uint32_t table = 0;     ///< of set_rotations(), below kRotationTables
  uint32_t channels = 0;  ///< rotated ones, even; 0: all
  float rest = 1;         ///< what the others are multiplied by, for rotations that also scale
};
inline constexpr uint32_t kRotationTables = 3;

/// What attention needs to know beside queries and cache.
struct AttentionStep {
  uint32_t layer = 0;     ///< index within the cache
  uint32_t position = 0;  ///< of the pass's first token
  uint32_t window = 0;    ///< positions seen, the own one included; 0: all
  float constant = 0;     ///< arithmetic::score_constant
  /// A logit for each query head that joins the softmax's denominator; none: no sinks.
  std::optional<Vector> sinks = std::nullopt;
  /// If `gated`: `gate` is [tokens, heads, 2, head_dim], the second half of each head a gate that
  /// the head's output is multiplied by, through the logistic function.
  bool gated = false;
  Floats gate = {};
};

/// A gated delta net between its projections.
struct DeltaStep {
  uint32_t layer = 0;  ///< index within the state
  Floats mixed;        ///< [tokens, columns]: queries, keys, values; passed through state_value
  Floats decay;        ///< [tokens, value_heads]: a
  Floats rate;         ///< [tokens, value_heads]: b
  Vector convolution;  ///< [kernel, columns], oldest position first
  Vector constants;    ///< [value_heads]: arithmetic::decay_constant
  Vector bias;         ///< [value_heads]: dt_bias
  float scale = 0;     ///< of the output: 1 / sqrt(key_dim)
};

/// One matrix of an expert: rows of its product get the bias, if it has one, and then those of the
/// product of what the matrix leaves out, if that is held too.
struct ExpertMatrix {
  Matrix matrix;
  bool has_bias = false;
  Vector bias;
  std::optional<Matrix> rest = std::nullopt;
};

/// An MLP of which a layer has several: down(gated(gate x, up x)).
struct Expert {
  ExpertMatrix gate, up, down;
};

/// What is between an expert's products.
struct GatedActivation {
  enum class Kind : uint8_t { kSilu, kClampedSwiglu } kind = Kind::kSilu;
  float alpha = 0;  ///< clamped_swiglu
  float limit = 0;  ///< clamped_swiglu
};

/// A layer's experts, and how tokens choose among them.
struct ExpertsStep {
  std::span<const Expert> experts;  ///< all of one shape, and alike in having rests
  uint32_t chosen = 0;              ///< by a token: 1 to experts.size()
  bool normalize = false;           ///< weights of the chosen ones sum to 1
  GatedActivation activation;
  /// One that every token goes to beside them, of any width; null: none. Its output is weighted
  /// with the logistic function of the logit that follows those of the experts, and added last.
  const Expert* shared = nullptr;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// "scalar", "avx2", "avx512", "neon", …
  [[nodiscard]] virtual std::string_view isa() const = 0;

  // What lives as long as the model. Errors: kMemory.
  virtual Result<Matrix> add_matrix(PackedMatrix matrix) = 0;
  /// A matrix that was added, for reading rows back (the embedding of tied models).
  [[nodiscard]] virtual const PackedMatrix& matrix(Matrix matrix) const = 0;
  /// Most bytes of experts' matrices that are `on_demand` to be copied into memory; those that are
  /// used most are. The others stay where they are mapped. Without it none is copied.
  virtual void limit_experts(uint64_t bytes) = 0;
  virtual Vector add_vector(std::vector<float> values) = 0;
  virtual Floats add_floats(uint32_t columns) = 0;
  virtual Activations add_activations(uint32_t columns) = 0;
  virtual Heads add_heads(uint32_t heads, uint32_t head_dim) = 0;
  [[nodiscard]] virtual std::unique_ptr<KvCache> new_cache(uint32_t layers, uint32_t kv_heads,
                                                           uint32_t head_dim,
                                                           const CacheOptions& options) = 0;
  [[nodiscard]] std::unique_ptr<KvCache> new_cache(uint32_t layers, uint32_t kv_heads,
                                                   uint32_t head_dim) {
    return new_cache(layers, kv_heads, head_dim, {});
  }
  [[nodiscard]] virtual std::unique_ptr<RecurrentState> new_recurrent(uint32_t layers,
                                                                      const DeltaShape& shape) = 0;

  // A pass: begin, steps in order, finish.
  /// Starts a pass of `tokens` tokens; buffers grow to hold them. Error: kMemory.
  [[nodiscard]] virtual Status begin(uint32_t tokens) = 0;
  /// Boundary format in: half [tokens][columns], exponents [tokens].
  virtual void load_hidden(std::span<const uint16_t> half, std::span<const int16_t> exponents,
                           Floats out) = 0;
  /// Rounds to the boundary format and back, in place: what happens between two layers.
  virtual void round_hidden(Floats hidden) = 0;
  /// Cosines and sines of the pass's positions, [tokens][head_dim / 2], for queries() and keys().
  /// Pairs of channels that are not rotated have the default Rotation.
  virtual void set_rotations(uint32_t table, std::span<const arithmetic::Rotation> rotations) = 0;
  /// out = quantize(norm(in)).
  virtual void norm(Floats in, const Norm& norm, Activations out) = 0;
  /// out = norm(in), not quantized. `in` and `out` may be the same.
  virtual void norm_floats(Floats in, const Norm& norm, Floats out) = 0;
  /// Several products of the same activations.
  virtual void matmul(Activations in, std::span<const Product> products) = 0;
  /// hidden += delta.
  virtual void add(Floats hidden, Floats delta) = 0;
  /// x *= factor.
  virtual void scale(Floats x, float factor) = 0;
  /// out = quantize(in).
  virtual void quantize(Floats in, Activations out) = 0;
  /// out = quantize(gated_silu(gate, up)).
  virtual void gated_silu(Floats gate, Floats up, Activations out) = 0;
  /// out = quantize(gelu_tanh(in)).
  virtual void gelu(Floats in, Activations out) = 0;
  /// out = quantize(gelu_tanh(gate) * up).
  virtual void gated_gelu(Floats gate, Floats up, Activations out) = 0;
  /// Each head: norm if not null (over head_dim), quantize, rotate. A head of `in`
  /// that is twice as wide as one of `out` begins with the query.
  virtual void queries(Floats in, const Norm* norm, const Rotary& rotary, Heads out) = 0;
  /// The same for keys, stored at positions `position` and on of the cache's layer.
  virtual void keys(Floats in, const Norm* norm, const Rotary& rotary, KvCache& cache,
                    uint32_t layer, uint32_t position) = 0;
  /// Values, quantized and stored likewise.
  virtual void values(Floats in, KvCache& cache, uint32_t layer, uint32_t position) = 0;
  /// out[t] = quantize(all heads of attention(query t, positions seen by it)).
  virtual void attention(Heads queries, const KvCache& cache, const AttentionStep& step,
                         Activations out) = 0;
  /// Convolution, unit vectors and the delta rule, token by token: state.layer goes on by the
  /// pass's tokens; out [tokens, value_heads, value_dim].
  virtual void delta_net(const DeltaStep& step, RecurrentState& state, Floats out) = 0;
  /// out = quantize(norm of each head of `in` * silu(gate)); the norm's weight is one head's.
  virtual void gated_norm(Floats in, const Norm& norm, Floats gate, Activations out) = 0;
  /// out[t] = weighted_sum(outputs of the experts that route() chooses for token t by its logits).
  /// Only their weights are read, each once a pass. `logits`: [tokens, experts (+ 1 if one is
  /// shared)].
  virtual void experts(Activations in, Floats logits, const ExpertsStep& step, Floats out) = 0;
  /// Boundary format out; ends the use of `hidden` in this pass.
  virtual void store_hidden(Floats hidden, std::span<uint16_t> half,
                            std::span<int16_t> exponents) = 0;
  /// Waits for everything and copies rows [first, first + count) of `in`.
  virtual void read(Floats in, uint32_t first, uint32_t count, std::span<float> out) = 0;
  /// Ends the pass. kInvalid if an activation was infinite or not a number.
  [[nodiscard]] virtual Status finish() = 0;
};

/// Which instruction sets this machine runs.
struct CpuFeatures {
  bool avx2 = false;     ///< AVX2 and F16C
  bool avx512 = false;   ///< AVX-512 F, BW, DQ, VL and VNNI
  bool amx = false;      ///< AMX's tiles and 8-bit products, which the system permits, and avx512
  bool neon = false;     ///< AArch64, every processor of which has NEON
  bool dotprod = false;  ///< NEON's 8-bit dot products (FEAT_DotProd)
  bool i8mm = false;     ///< NEON's 8-bit matrix products (FEAT_I8MM), and dotprod
  bool simd128 = false;  ///< WebAssembly's 128-bit vectors
};
CpuFeatures cpu_features();

/// A CPU backend: "scalar" is the reference, straight from src/arithmetic. Unknown or unavailable
/// sets are refused by name. `isa` "best" takes the fastest one that this machine has.
/// `pool` may be shared by backends that never run at the same time.
Result<std::unique_ptr<Backend>> make_cpu_backend(std::string_view isa,
                                                  std::shared_ptr<ThreadPool> pool);

}  // namespace tandem::kernels
