// The CPU backend's KV cache: keys and values in chunks of positions, which are added as a
// conversation grows, never copied, and used again once a window has passed them.
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
  CpuKvCache(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
             const CacheOptions& options = {});

  [[nodiscard]] Status reserve(uint32_t positions) override;
  [[nodiscard]] uint64_t bytes() const override { return bytes_; }
  void release(uint32_t floor) override;
  [[nodiscard]] uint32_t floor() const override { return floor_; }
  void clear() override;
  [[nodiscard]] uint32_t first_seen(uint32_t layer, uint32_t length) const override;

  [[nodiscard]] uint32_t position_values() const override {
    return kv_heads_ * 2 * (1 + head_dim_);
  }
  void export_positions(uint32_t layer, uint32_t first, uint32_t count,
                        std::span<int16_t> out) const override;
  [[nodiscard]] Status import_positions(uint32_t layer, uint32_t first, uint32_t count,
                                        std::span<const int16_t> in) override;

  [[nodiscard]] uint32_t kv_heads() const { return kv_heads_; }
  /// What attention reads; valid until the next reserve(), release() or clear().
  [[nodiscard]] CacheView view(uint32_t layer, uint32_t kv_head) const;
  /// Stores one head's vector at a reserved position, rounded to 8 bits if these are what is held.
  /// Different positions or heads may be stored at the same time.
  void store_key(uint32_t layer, uint32_t kv_head, uint32_t position, const int16_t* values,
                 int32_t exponent);
  void store_value(uint32_t layer, uint32_t kv_head, uint32_t position, const int16_t* values,
                   int32_t exponent);

  /// Bytes of one chunk of one layer.
  static uint64_t chunk_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t bits = 16);
  /// Bytes that a layer with this window, 0 for none, comes to hold at `positions` positions, in
  /// passes of up to kWidestPass tokens.
  static uint64_t layer_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t bits, uint32_t window,
                              uint32_t positions);
  static constexpr uint32_t kWidestPass = 512;

 private:
  using Chunk = AlignedArray<uint8_t>;
  struct Head {
    std::vector<const int16_t*> keys;  // a pointer a chunk; null where it was let go
    std::vector<const int16_t*> values;
    std::vector<const int16_t*> key_exponents;
    std::vector<const int16_t*> value_exponents;
  };
  struct Layer {
    uint32_t window = 0;
    std::vector<Chunk> chunks;  // empty where they were let go
    std::vector<Chunk> unused;
    size_t first = 0;  // chunk that is held
  };
  [[nodiscard]] size_t index(uint32_t layer, uint32_t kv_head) const {
    return size_t{layer} * kv_heads_ + kv_head;
  }
  // Chunks of a layer that come before the first one that passes from `floor` on see.
  void let_go(uint32_t layer, size_t chunks);
  void store(const int16_t* chunk, int16_t* exponents, uint32_t slot,
             size_t (*offset)(uint32_t lane, uint32_t channel, uint32_t padded_dim),
             const int16_t* values, int32_t exponent);
  [[nodiscard]] int16_t value_at(const int16_t* chunk, size_t offset) const;

  uint32_t kv_heads_;
  uint32_t head_dim_;
  uint32_t padded_dim_;
  uint32_t bits_;
  uint32_t floor_ = 0;
  uint64_t bytes_ = 0;
  std::vector<Layer> layers_;
  std::vector<Head> heads_;
};

}  // namespace tandem::kernels::cpu
