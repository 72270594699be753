// The CPU backend's KV cache: 16-bit keys and values in chunks of positions, grown on demand.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/aligned.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/kernels.h"

namespace tandem::kernels::cpu {

/// Layout: see CacheView. One chunk of one layer holds all its kv heads.
class CpuKvCache final : public KvCache {
 public:
  CpuKvCache(uint32_t layers, uint32_t kv_heads, uint32_t head_dim);

  [[nodiscard]] Status reserve(uint32_t positions) override;
  [[nodiscard]] uint64_t bytes() const override { return bytes_; }

  [[nodiscard]] uint32_t position_values() const override {
    return kv_heads_ * 2 * (1 + head_dim_);
  }
  void export_positions(uint32_t layer, uint32_t first, uint32_t count,
                        std::span<int16_t> out) const override;
  [[nodiscard]] Status import_positions(uint32_t layer, uint32_t first, uint32_t count,
                                        std::span<const int16_t> in) override;

  [[nodiscard]] uint32_t kv_heads() const { return kv_heads_; }
  /// What attention reads; valid until the next reserve().
  [[nodiscard]] CacheView view(uint32_t layer, uint32_t kv_head) const;
  /// Stores one head's vector at a reserved position.
  void store_key(uint32_t layer, uint32_t kv_head, uint32_t position, const int16_t* values,
                 int32_t exponent);
  void store_value(uint32_t layer, uint32_t kv_head, uint32_t position, const int16_t* values,
                   int32_t exponent);

  /// Bytes of one chunk of one layer.
  static uint64_t chunk_bytes(uint32_t kv_heads, uint32_t head_dim);

 private:
  struct Head {
    std::vector<const int16_t*> keys;
    std::vector<const int16_t*> values;
    std::vector<const int16_t*> key_exponents;
    std::vector<const int16_t*> value_exponents;
  };
  [[nodiscard]] size_t index(uint32_t layer, uint32_t kv_head) const {
    return size_t{layer} * kv_heads_ + kv_head;
  }

  uint32_t layers_;
  uint32_t kv_heads_;
  uint32_t head_dim_;
  uint32_t padded_dim_;
  uint64_t bytes_ = 0;
  std::vector<AlignedArray<int16_t>> chunks_;
  std::vector<Head> heads_;
};

}  // namespace tandem::kernels::cpu
