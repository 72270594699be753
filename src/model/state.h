// What layers keep of a conversation: keys and values, or a recurrent state, behind one interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "model/config.h"

namespace tandem::model {

/// The state of one conversation in one stage: KV cache of its attention layers, recurrent state of
/// its delta nets. Made by a Stage, which appends to it, and usable with that stage only.
/// Not thread-safe.
class Sequence {
 public:
  Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  virtual ~Sequence() = default;

  /// Number of positions held.
  [[nodiscard]] virtual uint32_t length() const = 0;
  /// Bytes of memory held now, checkpoints included (the KV cache grows in blocks of positions).
  [[nodiscard]] virtual uint64_t bytes() const = 0;
  /// The first position, other than 0, that rollback() can reach. 0 where all can be reached; with
  /// recurrent layers the last min(N, kernels::kRollbackWindow) positions of the latest pass, and
  /// where that pass began if it was no wider.
  [[nodiscard]] virtual uint32_t floor() const { return 0; }
  /// Forgets every position from `length` on, and checkpoints of later positions. Error: kInvalid
  /// if more than length() is asked to be kept, or something between 0 and floor().
  [[nodiscard]] virtual Status rollback(uint32_t length) = 0;

  /// Remembers the present state as checkpoint `slot`, in place of an earlier one of that number.
  /// Errors: kInvalid (more than checkpoint_limit()), kMemory.
  [[nodiscard]] virtual Status save(uint32_t slot) {
    (void)slot;
    return {};
  }
  /// Goes back to checkpoint `slot`, which was saved at `length`; floor() is again what it was
  /// then. Error: kInvalid if there is no such checkpoint.
  [[nodiscard]] virtual Status restore(uint32_t slot, uint32_t length) {
    (void)slot;
    return rollback(length);
  }
  virtual void drop(uint32_t slot) { (void)slot; }

  /// SHA-256 of everything that later positions depend on: equal for equal states on all machines,
  /// however they were come by. Error: kMemory, kUnsupported.
  [[nodiscard]] virtual Result<Digest> digest() const {
    return unsupported("this sequence has no digest");
  }
  /// The present state as bytes, for read() of a sequence of the same layers of the same model
  /// (state_file.h). Errors: kMemory, kUnsupported.
  [[nodiscard]] virtual Result<std::vector<std::byte>> write() const {
    return unsupported("this sequence can't be written");
  }
  /// Takes the place of whatever was held; checkpoints are dropped. On an error (kInvalid: not what
  /// write() gives for these layers; kMemory) nothing is held.
  [[nodiscard]] virtual Status read(std::span<const std::byte> bytes) {
    (void)bytes;
    return unsupported("this sequence can't be read");
  }
};

/// Checkpoints that a conversation may have at once. They cost nothing in layers of attention;
/// those of a hybrid's layers may take 256 MB in all, but there are 2 at least and 8 at most.
uint32_t checkpoint_limit(const ModelConfig& config);
/// Bytes of one checkpoint of layers [first_layer, last_layer), at most.
uint64_t checkpoint_bytes(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer);

}  // namespace tandem::model
