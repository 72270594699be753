// The CPU backend's KV cache: keys and values in chunks of positions, which are added as a
// conversation grows, never copied, and used again once a window has passed them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/kernels.h"

namespace tandem::kernels::cpu {

/// Layout: see CacheView. A layer's chunks lie in runs of one to kLongestRun, [kv head][keys of the
/// run's chunks, values of them, exponents and multipliers likewise], so that a head's keys, and
/// its values, are read as streams that go on from chunk to chunk: the processor takes more than a
/// microsecond to follow one at full speed, a fifth to half of the time that a chunk's 64 KB take.
/// Runs become longer as a layer grows, up to what it comes to hold at CacheOptions::context.
///
/// What all layers add together lies in one piece of memory, so that it can be of huge pages:
/// walking through the tables of small ones takes a fifth of attention's time after the weights
/// have been through the caches.
class CpuKvCache final : public KvCache {
 public:
  CpuKvCache(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
             const CacheOptions& options = {});

  [[nodiscard]] Status reserve(uint32_t positions) override;
  [[nodiscard]] uint64_t bytes() const override { return bytes_; }
  [[nodiscard]] uint32_t bits() const override { return bits_; }
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

  /// Asks for the memory that a head's key and value at a reserved position will lie in.
  void touch(uint32_t layer, uint32_t kv_head, uint32_t position) const;

  /// Bytes of one chunk of one layer.
  static uint64_t chunk_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t bits = 16);
  /// Bytes that a layer with this window, 0 for none, comes to hold at `positions` positions, in
  /// passes of up to kWidestPass tokens.
  static uint64_t layer_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t bits, uint32_t window,
                              uint32_t positions);
  static constexpr uint32_t kWidestPass = 512;
  /// Chunks of the longest run: 1 MB of a head's keys at 16 bits and 128 channels.
  static constexpr uint32_t kLongestRun = 16;

 private:
  // One of a run's chunks.
  struct Chunk {
    const uint8_t* run = nullptr;  // null where the chunk was let go
    uint32_t index = 0;
    uint32_t run_chunks = 0;
  };
  struct Head {
    std::vector<const int16_t*> keys;  // a pointer a chunk; null where it was let go
    std::vector<const int16_t*> values;
    std::vector<const int16_t*> key_exponents;
    std::vector<const int16_t*> value_exponents;
    std::vector<const uint8_t*> key_multipliers;  // of 8 bits
    std::vector<const uint8_t*> value_multipliers;
  };
  struct Layer {
    uint32_t window = 0;
    std::vector<Chunk> chunks;
    std::deque<Chunk> unused;  // in the order of their use, which is mostly that of memory
    size_t first = 0;          // chunk that is held
    uint64_t owned = 0;        // chunks, used or not
  };
  [[nodiscard]] size_t index(uint32_t layer, uint32_t kv_head) const {
    return size_t{layer} * kv_heads_ + kv_head;
  }
  // Chunks of memory to add to a layer that is to have `wanted` in all; with those that it is
  // likely to need soon, if `ahead`.
  [[nodiscard]] uint64_t growth(const Layer& layer, size_t wanted, bool ahead) const;
  // Adds where the heads' vectors lie in a layer's next chunk, null if it was let go.
  void add_chunk(uint32_t layer, const Chunk& chunk);
  // Gives up a layer's first chunks.
  void let_go(uint32_t layer, size_t chunks);
  // Where one head's keys, or values, of a chunk lie.
  struct Place {
    int16_t* vectors;
    int16_t* exponents;
    uint8_t* multipliers;
    bool key;
    [[nodiscard]] size_t offset(uint32_t slot, uint32_t channel, uint32_t padded_dim) const;
  };
  [[nodiscard]] Place key_place(uint32_t layer, uint32_t kv_head, uint32_t chunk) const;
  [[nodiscard]] Place value_place(uint32_t layer, uint32_t kv_head, uint32_t chunk) const;
  [[nodiscard]] size_t multiplier_offset(uint32_t slot, uint32_t channel) const;
  void store(const Place& place, uint32_t slot, const int16_t* values, int32_t exponent);
  // The same for what was exported, which becomes the same again; false if it was of 16 bits.
  [[nodiscard]] bool restore(const Place& place, uint32_t slot, const int16_t* values);
  [[nodiscard]] int16_t value_at(const Place& place, uint32_t slot, uint32_t channel) const;

  uint32_t kv_heads_;
  uint32_t head_dim_;
  uint32_t padded_dim_;
  uint32_t bits_;
  uint32_t context_;
  uint32_t floor_ = 0;
  uint64_t bytes_ = 0;
  std::vector<std::shared_ptr<void>> memory_;  // all runs
  std::vector<Layer> layers_;
  std::vector<Head> heads_;
};

}  // namespace tandem::kernels::cpu
