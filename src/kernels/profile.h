// Where a pass's time goes: a backend around another one that times each step. Without it nothing
// is timed and nothing costs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kernels/kernels.h"

namespace tandem::kernels {

/// What one part of a pass took, over all passes since the last reset().
struct PartTimes {
  std::string part;
  uint64_t steps = 0;
  double seconds = 0;
  uint64_t bytes = 0;          ///< of weights and KV cache, read once a step
  uint64_t multiply_adds = 0;  ///< of weights or cached values with 16-bit activations
};

/// Passes of one token, or of several.
struct PassTimes {
  uint64_t passes = 0;  ///< of layers
  uint64_t tokens = 0;
  std::vector<PartTimes> parts;  ///< in the order in which they first ran
};

/// Thread-safe, but for `routed`.
class Profile {
 public:
  /// Given each mixture's logits, [tokens, experts (+ 1 if one is shared)], by the thread that runs
  /// the pass, before the experts run. Set before the first pass; empty: they are not read.
  std::function<void(const ExpertsStep& step, std::span<const float> logits)> routed;

  void reset();
  [[nodiscard]] PassTimes times(bool one_token) const;

  void add(bool one_token, const std::string& part, double seconds, uint64_t bytes,
           uint64_t multiply_adds);
  void add_pass(uint32_t tokens);

 private:
  mutable Mutex mutex_;
  PassTimes times_[2];
};

/// A backend that does what `inner` does and tells `profile`. Matrices have names of their own, set
/// by label(); products together count for the first one's.
class ProfiledBackend final : public Backend {
 public:
  ProfiledBackend(std::unique_ptr<Backend> inner, std::shared_ptr<Profile> profile)
      : inner_(std::move(inner)), profile_(std::move(profile)) {}

  void label(Matrix matrix, std::string part);

  [[nodiscard]] std::string_view isa() const override { return inner_->isa(); }
  Result<Matrix> add_matrix(PackedMatrix matrix) override {
    return inner_->add_matrix(std::move(matrix));
  }
  [[nodiscard]] const PackedMatrix& matrix(Matrix matrix) const override {
    return inner_->matrix(matrix);
  }
  void limit_experts(uint64_t bytes) override { inner_->limit_experts(bytes); }
  Vector add_vector(std::vector<float> values) override {
    return inner_->add_vector(std::move(values));
  }
  Floats add_floats(uint32_t columns) override { return inner_->add_floats(columns); }
  Activations add_activations(uint32_t columns) override {
    return inner_->add_activations(columns);
  }
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
  void set_rotations(uint32_t table, std::span<const arithmetic::Rotation> rotations) override {
    inner_->set_rotations(table, rotations);
  }
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
  void read(Floats in, uint32_t first, uint32_t count, std::span<float> out) override {
    inner_->read(in, first, count, out);
  }
  [[nodiscard]] Status finish() override { return inner_->finish(); }

 private:
  template <typename Step>
  void timed(const std::string& part, uint64_t bytes, uint64_t multiply_adds, Step&& step);

  struct Size {
    uint64_t bytes = 0;
    uint64_t weights = 0;
  };
  struct HeadShape {
    uint32_t heads = 0;
    uint32_t head_dim = 0;
  };
  std::unique_ptr<Backend> inner_;
  std::shared_ptr<Profile> profile_;
  std::map<uint32_t, std::string> labels_;
  std::map<uint32_t, HeadShape> heads_;
  uint64_t kv_bytes_ = 0;  ///< of a position and layer
  uint64_t state_ = 0;     ///< values of a delta net's state
  bool layers_ = false;    ///< it has attention, so its passes are counted
  uint32_t tokens_ = 0;
};

}  // namespace tandem::kernels
