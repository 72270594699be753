// Recurrent state of gated delta nets: what those layers keep of a conversation instead of keys and
// values. Its size does not depend on the conversation's length, but it can't forget the last
// positions by itself, so it remembers what the latest ones brought.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace tandem::kernels {

/// Shape of a gated delta net's layer. key_dim and value_dim are multiples of 16; key_heads divides
/// value_heads: value head h goes with key head h / (value_heads / key_heads).
struct DeltaShape {
  uint32_t key_heads = 0;
  uint32_t value_heads = 0;
  uint32_t key_dim = 0;    ///< of a head
  uint32_t value_dim = 0;  ///< of a head
  uint32_t kernel = 0;     ///< positions that the convolution sees, the own one included; 2 to 8

  [[nodiscard]] uint32_t keys() const { return key_heads * key_dim; }
  [[nodiscard]] uint32_t values() const { return value_heads * value_dim; }
  /// Columns that the convolution runs over: queries, keys, values.
  [[nodiscard]] uint32_t columns() const { return 2 * keys() + values(); }
  [[nodiscard]] uint64_t state() const { return uint64_t{values()} * key_dim; }
  bool operator==(const DeltaShape&) const = default;
};

/// Positions of the latest pass that a state can go back to one by one: all of a pass up to this
/// wide, the last ones of a wider pass.
inline constexpr uint32_t kRollbackWindow = 32;

/// What a state was at some time, and what the last positions before brought: enough to go back to
/// then, and from there to each of those positions.
struct RecurrentCheckpoint {
  DeltaShape shape;
  uint32_t layers = 0;
  uint32_t base = 0;    ///< position whose state `values` begins with
  uint32_t length = 0;  ///< base to base + kRollbackWindow
  /// A layer: state [value_heads][value_dim / 16][key_dim][16] at `base`, then rows of the
  /// convolution's input [kernel - 1 + length - base][columns], then a token's normalized keys and
  /// values [length - base][keys + values], then its decays and rates [length - base][value_heads]
  /// [2].
  std::vector<float> values;

  /// Values that a checkpoint of this shape has.
  static uint64_t count(const DeltaShape& shape, uint32_t layers, uint32_t tokens);
  [[nodiscard]] uint64_t bytes() const { return values.size() * sizeof(float); }
};

/// The state of a conversation's delta-net layers. Owned by the caller, advanced by the backend's
/// steps. Not thread-safe.
class RecurrentState {
 public:
  RecurrentState() = default;
  RecurrentState(const RecurrentState&) = delete;
  RecurrentState& operator=(const RecurrentState&) = delete;
  virtual ~RecurrentState() = default;

  /// Makes room; needed once before the first pass. Error: kMemory.
  [[nodiscard]] virtual Status reserve() = 0;
  /// Bytes held now.
  [[nodiscard]] virtual uint64_t bytes() const = 0;
  /// Positions that the state stands for.
  [[nodiscard]] virtual uint32_t length() const = 0;
  /// The first position that rollback() can reach, other than 0.
  [[nodiscard]] virtual uint32_t floor() const = 0;

  /// Every layer has been run over `tokens` more tokens, at least 1. If `ok` is false the pass
  /// failed, and they are taken back; after a pass wider than kRollbackWindow nothing is left then,
  /// and the length is 0.
  virtual void advance(uint32_t tokens, bool ok) = 0;
  /// Goes back to `length`: 0, or floor() to length(). Error: kInvalid.
  [[nodiscard]] virtual Status rollback(uint32_t length) = 0;

  /// Error: kMemory.
  [[nodiscard]] virtual Result<RecurrentCheckpoint> save() const = 0;
  /// Error: kInvalid if it is of another shape, kMemory.
  [[nodiscard]] virtual Status restore(const RecurrentCheckpoint& checkpoint) = 0;
  /// The state's values as a checkpoint of no token lays them out: equal for equal states, however
  /// they were come by. Error: kMemory.
  [[nodiscard]] virtual Result<std::vector<float>> values() const = 0;
};

}  // namespace tandem::kernels
