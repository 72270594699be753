// The CPU backend's recurrent state: two states a layer, from one of which a pass reads while it
// writes the other, and what the latest tokens brought, to go forward again from the older one.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/recurrent.h"

namespace tandem::kernels::cpu {

class CpuRecurrentState final : public RecurrentState {
 public:
  /// `kernels` and `pool` must outlive it.
  CpuRecurrentState(uint32_t layers, const DeltaShape& shape, const CpuKernels& kernels,
                    ThreadPool& pool);

  [[nodiscard]] Status reserve() override;
  [[nodiscard]] uint64_t bytes() const override { return bytes_; }
  [[nodiscard]] uint32_t length() const override { return length_; }
  [[nodiscard]] uint32_t floor() const override { return base_; }
  void advance(uint32_t tokens, bool ok) override;
  [[nodiscard]] Status rollback(uint32_t length) override;
  [[nodiscard]] Result<RecurrentCheckpoint> save() const override;
  [[nodiscard]] Status restore(const RecurrentCheckpoint& checkpoint) override;
  [[nodiscard]] Result<std::vector<float>> values() const override;

  [[nodiscard]] const DeltaShape& shape() const { return shape_; }

  /// Where up to kRollbackWindow tokens of a layer go.
  struct Group {
    float* mixed = nullptr;    ///< [kernel - 1 + tokens][columns]; the first rows are there already
    float* tokens = nullptr;   ///< [tokens][keys + values]
    float* gates = nullptr;    ///< [tokens][value_heads][2]
    float* queries = nullptr;  ///< [tokens][keys]
  };
  /// Makes the layer's present state the one to come back to.
  Group begin_group(uint32_t layer);
  /// The delta rule over the group's tokens, on the pool. With queries, out is
  /// [tokens][value_heads * value_dim]; without, only the state advances.
  void run_group(uint32_t layer, uint32_t tokens, const float* queries, float scale, float* out);

  /// Bytes that a conversation's state takes.
  static uint64_t bytes_for(uint32_t layers, const DeltaShape& shape);

 private:
  struct Layer {
    std::array<AlignedArray<float>, 2> states;  ///< [value head][value_dim / 16][key_dim][16]
    uint32_t current = 0;
    uint32_t logged = 0;        ///< tokens from the older state to the present one
    AlignedArray<float> mixed;  ///< as in Group, for kRollbackWindow tokens
    AlignedArray<float> tokens;
    AlignedArray<float> gates;
  };
  [[nodiscard]] const AlignedArray<float>& oldest(const Layer& layer) const;
  void clear();

  uint32_t count_;
  DeltaShape shape_;
  const CpuKernels& kernels_;
  ThreadPool& pool_;
  std::vector<Layer> layers_;
  AlignedArray<float> queries_;
  uint64_t bytes_ = 0;
  uint32_t base_ = 0;
  uint32_t length_ = 0;
};

}  // namespace tandem::kernels::cpu
