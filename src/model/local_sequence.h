// The state of a conversation in a stage of this process.
#pragma once

#include <map>
#include <memory>

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "model/state.h"

namespace tandem::model {

class Stage;

class LocalSequence final : public Sequence {
 public:
  /// `recurrent` is null if no layer is a delta net. `limit` is checkpoint_limit().
  LocalSequence(const Stage* owner, std::unique_ptr<kernels::KvCache> cache, uint32_t kv_layers,
                std::unique_ptr<kernels::RecurrentState> recurrent, uint32_t limit)
      : owner_(owner),
        cache_(std::move(cache)),
        kv_layers_(kv_layers),
        recurrent_(std::move(recurrent)),
        limit_(limit) {}

  [[nodiscard]] uint32_t length() const override { return length_; }
  [[nodiscard]] uint64_t bytes() const override;
  [[nodiscard]] uint32_t floor() const override;
  [[nodiscard]] Status rollback(uint32_t length) override;
  [[nodiscard]] Status save(uint32_t slot) override;
  [[nodiscard]] Status restore(uint32_t slot, uint32_t length) override;
  void drop(uint32_t slot) override { checkpoints_.erase(slot); }
  [[nodiscard]] std::vector<Checkpoint> checkpoints() const override;
  [[nodiscard]] Result<Digest> digest() const override;
  [[nodiscard]] Result<std::vector<std::byte>> write() const override;
  [[nodiscard]] Status read(std::span<const std::byte> bytes) override;

  [[nodiscard]] const Stage* owner() const { return owner_; }
  [[nodiscard]] kernels::KvCache& cache() { return *cache_; }
  /// Null if no layer is a delta net.
  [[nodiscard]] kernels::RecurrentState* recurrent() { return recurrent_.get(); }
  /// Makes room for `positions` in all. Error: kMemory.
  [[nodiscard]] Status reserve(uint32_t positions);
  /// A pass of `tokens` has run; it is taken back if it is not `ok`.
  void append(uint32_t tokens, bool ok);

 private:
  struct Saved {
    uint32_t length = 0;
    kernels::RecurrentCheckpoint recurrent;
  };
  // The first position that a state of `length` positions written now could be rolled back to.
  [[nodiscard]] uint32_t written_floor(uint32_t length) const;
  // Positions before `length` of all layers together that passes from `floor` on see.
  [[nodiscard]] uint64_t needed(uint32_t length, uint32_t floor) const;
  Status read_state(std::span<const std::byte> bytes);
  Status read_keys_values(ByteReader& reader, uint32_t length);

  const Stage* owner_;
  std::unique_ptr<kernels::KvCache> cache_;
  uint32_t kv_layers_;
  std::unique_ptr<kernels::RecurrentState> recurrent_;
  uint32_t limit_;
  uint32_t length_ = 0;
  std::map<uint32_t, Saved> checkpoints_;
};

}  // namespace tandem::model
