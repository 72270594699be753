// The CPU backend: executes each step at once, split over a thread pool, with one instruction set's
// kernels.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/expert_groups.h"
#include "kernels/cpu/expert_memory.h"
#include "kernels/cpu/expert_reader.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/weight_mover.h"
#include "kernels/kernels.h"

namespace tandem::kernels::cpu {

class CpuRecurrentState;

// Fewer elements than this are done before another thread has woken up.
inline constexpr uint32_t kElementsWorthForking = 16384;

class CpuBackend final : public Backend {
 public:
  CpuBackend(const CpuKernels& kernels, std::shared_ptr<ThreadPool> pool);

  [[nodiscard]] std::string_view isa() const override { return kernels_.isa; }
  Result<Matrix> add_matrix(PackedMatrix matrix) override;
  [[nodiscard]] const PackedMatrix& matrix(Matrix matrix) const override {
    return matrices_[matrix.id];
  }
  void limit_experts(uint64_t bytes) override { expert_memory_.set_limit(bytes); }
  Vector add_vector(std::vector<float> values) override;
  Floats add_floats(uint32_t columns) override;
  Activations add_activations(uint32_t columns) override;
  Heads add_heads(uint32_t heads, uint32_t head_dim) override;
  using Backend::new_cache;
  [[nodiscard]] std::unique_ptr<KvCache> new_cache(uint32_t layers, uint32_t kv_heads,
                                                   uint32_t head_dim,
                                                   const CacheOptions& options) override;
  [[nodiscard]] std::unique_ptr<RecurrentState> new_recurrent(uint32_t layers,
                                                              const DeltaShape& shape) override;

  [[nodiscard]] Status begin(uint32_t tokens) override;
  void load_hidden(std::span<const uint16_t> half, std::span<const int16_t> exponents,
                   Floats out) override;
  void round_hidden(Floats hidden) override;
  void set_rotations(uint32_t table, std::span<const arithmetic::Rotation> rotations) override;
  void norm(Floats in, const Norm& norm, Activations out) override;
  void norm_floats(Floats in, const Norm& norm, Floats out) override;
  void matmul(Activations in, std::span<const Product> products) override;
  void add(Floats hidden, Floats delta) override;
  void scale(Floats x, float factor) override;
  void quantize(Floats in, Activations out) override;
  void gated_silu(Floats gate, Floats up, Activations out) override;
  void gelu(Floats in, Activations out) override;
  void gated_gelu(Floats gate, Floats up, Activations out) override;
  void queries(Floats in, const Norm* norm, const Rotary& rotary, Heads out) override;
  void keys(Floats in, const Norm* norm, const Rotary& rotary, KvCache& cache, uint32_t layer,
            uint32_t position) override;
  void values(Floats in, KvCache& cache, uint32_t layer, uint32_t position) override;
  void attention(Heads queries, const KvCache& cache, const AttentionStep& step,
                 Activations out) override;
  void delta_net(const DeltaStep& step, RecurrentState& state, Floats out) override;
  void gated_norm(Floats in, const Norm& norm, Floats gate, Activations out) override;
  void experts(Activations in, Floats logits, const ExpertsStep& step, Floats out) override;
  void store_hidden(Floats hidden, std::span<uint16_t> half, std::span<int16_t> exponents) override;
  void read(Floats in, uint32_t first, uint32_t count, std::span<float> out) override;
  [[nodiscard]] Status finish() override;

 private:
  struct FloatRows {
    uint32_t columns = 0;
    AlignedArray<float> values;  // [tokens][columns]
    float* row(uint32_t token) { return values.data() + size_t{token} * columns; }
  };
  struct HeadRows {
    uint32_t heads = 0;
    uint32_t head_dim = 0;
    uint32_t padded_dim = 0;
    AlignedArray<int16_t> values;    // [tokens][heads][padded_dim]
    std::vector<int32_t> exponents;  // [tokens][heads]
  };

  // One head's way from floats to 16 bits; false if it is not finite.
  bool head(const float* x, uint32_t head_dim, const Norm* norm, const Rotary& rotary,
            uint32_t token, int16_t* values, int32_t* exponent);
  // Every head's way into a cache.
  using StoreHead = void (CpuKvCache::*)(uint32_t layer, uint32_t kv_head, uint32_t position,
                                         const int16_t* values, int32_t exponent);
  // A step that prepares heads, of queries or for a cache.
  struct HeadStep {
    Floats in;
    uint32_t heads = 0;
    uint32_t head_dim = 0;
    uint32_t stride = 0;  // from one head of `in` to the next
    std::optional<Norm> norm;
    Rotary rotary;
    Heads out;                    // of queries
    CpuKvCache* cache = nullptr;  // of keys and values
    uint32_t layer = 0;
    uint32_t position = 0;
    StoreHead store = nullptr;
  };
  // Heads [first, end) of a token.
  void prepare(const HeadStep& step, uint32_t token, uint32_t first, uint32_t end);
  // Prepares all heads now, or in a pass of one token later.
  void add(const HeadStep& step);
  void prepare_waiting();
  std::vector<HeadStep> waiting_;
  void store_heads(Floats in, const Norm* norm, const Rotary& rotary, KvCache& cache,
                   uint32_t layer, uint32_t position, StoreHead store);
  // Some tokens of a delta_net step, at most kRollbackWindow.
  void delta_group(const DeltaStep& step, CpuRecurrentState& state, uint32_t first, uint32_t count,
                   Floats out);
  // A token's decays and rates; false if they are not finite.
  bool gates(const DeltaStep& step, uint32_t token, float* out);
  bool apply(const Norm& norm, const float* x, int16_t* scratch, float* y);
  // out row `token` = quantize(x).
  void quantize_row(const float* x, ActivationRows& out, uint32_t token);
  // Runs body(token) for the pass's tokens, on the pool if there are enough elements in all.
  template <typename Body>
  void each_token(uint32_t columns, Body&& body) {
    const uint64_t fewest = (kElementsWorthForking + columns - 1) / std::max<uint32_t>(columns, 1);
    const uint64_t share = tokens_ / (uint64_t{pool_.threads()} * 4);
    pool_.split(tokens_, std::max<uint64_t>(fewest, share), [&](uint64_t begin, uint64_t end) {
      for (uint64_t t = begin; t < end; ++t) body(static_cast<uint32_t>(t));
    });
  }
  // out[t] = quantize(what fill(t, memory) writes to memory.floats) for the pass's tokens.
  template <typename Fill>
  void quantize_each(Activations out, Fill&& fill);
  // A product of some tokens.
  struct Task {
    const PackedMatrix* matrix;
    ActivationView in;
    const float* bias;  // may be null
    float* out;
    size_t stride;
  };
  // `uneven`: tasks have tokens of different numbers, so that pieces must be smaller.
  void run(std::span<const Task> tasks, bool uneven);
  std::vector<Task> tasks_;
  [[nodiscard]] const float* bias(const ExpertMatrix& matrix) const {
    return matrix.has_bias ? vectors_[matrix.bias.id].data() : nullptr;
  }
  // The parts of experts(), in expert_step.cpp.
  void choose(Floats logits, const ExpertsStep& step);
  bool grow_experts(const ActivationRows& in, const ExpertsStep& step);
  void gather(const ActivationRows& in);
  // Groups whose expert must be read go last and begin to be read; gives how many need not.
  size_t want_experts(const ExpertsStep& step);
  // Adds tasks that write products of `in` to rows `first` and on of `out`.
  void multiply(const ExpertMatrix& matrix, const ActivationView& in, ExpertProducts& out,
                size_t first);
  // Rows groups_.active of `inner`. Rests of the first products are added to them.
  void activate(const GatedActivation& activation, const Expert& expert, ExpertProducts& gate,
                ExpertProducts& up, ActivationRows& inner);
  // All products of some groups, and of the shared expert.
  void run_groups(const ActivationRows& in, const ExpertsStep& step,
                  std::span<const ExpertGroup> groups, bool with_shared);
  // Those from `first` on, as their experts arrive.
  void run_late_groups(const ActivationRows& in, const ExpertsStep& step, size_t first);
  void add_up(const ExpertsStep& step, FloatRows& out);
  // Moves some weights out of mapped files: for a quarter of the time that the last pass took.
  void move_weights();
  // Makes every buffer hold `tokens` tokens; false if memory is exhausted.
  bool grow(uint32_t tokens);
  void fail() { finite_.store(false, std::memory_order_relaxed); }

  const CpuKernels& kernels_;
  std::shared_ptr<ThreadPool> shared_pool_;
  ThreadPool& pool_;
  uint32_t tokens_ = 0;
  uint32_t capacity_ = 0;
  std::atomic<bool> finite_{true};
  std::atomic<bool> exhausted_{false};
  std::vector<PackedMatrix> matrices_;
  WeightMover mover_;
  bool settled_ = false;  // none of matrices_ is to be moved
  WeightMover::Clock::time_point pass_began_;
  WeightMover::Clock::duration pass_time_{};
  std::vector<std::vector<float>> vectors_;
  std::vector<FloatRows> floats_;
  std::vector<ActivationRows> activations_;
  std::vector<HeadRows> heads_;
  AlignedArray<float> head_outputs_;  // [tokens][heads][head_dim], before they are quantized
  std::vector<arithmetic::Rotation> rotations_[kRotationTables];
  ExpertGroups groups_;
  ExpertMemory expert_memory_;
  ExpertReader expert_reader_;
  Status unreadable_;  // why weights that were needed can't be read
};

}  // namespace tandem::kernels::cpu
