// A stage: a consecutive run of a model's layers with their KV cache, on one backend.
// Whoever runs layers talks to this header; nothing else knows which backend it is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/hidden.h"
#include "model/state.h"
#include "weights/source.h"

namespace tandem::kernels {
class Profile;
}
namespace tandem::weights {
class PackedStore;
}

namespace tandem::model {

/// Weights are held as 8-bit integers with a scale per row; or twice so, the second time what the
/// first leaves out (16 bits); or as 4-bit integers in groups of 32 (6
/// bits for embedding and output head).
enum class WeightBits : uint8_t { k8 = 8, k4 = 4, k16 = 16 };
/// One of these, by its number.
inline bool is_weight_bits(uint32_t bits) {
  return bits == 8 || bits == 4 || bits == 16;
}

/// Keys and values are held as 16-bit integers, or rounded to 8 bits, which changes answers.
enum class KvBits : uint8_t { k16 = 16, k8 = 8 };

/// Which instruction set runs the kernels; the bits of an answer do not depend on it.
enum class Isa : uint8_t { kBest, kScalar, kAvx2, kAvx512, kAmx, kNeon, kDotprod, kI8mm, kSimd128 };
inline constexpr Isa kIsas[] = {Isa::kBest, Isa::kScalar,  Isa::kAvx2, Isa::kAvx512, Isa::kAmx,
                                Isa::kNeon, Isa::kDotprod, Isa::kI8mm, Isa::kSimd128};

/// How to load a stage.
struct StageOptions {
  uint32_t first_layer = 0;
  uint32_t last_layer = 0;  ///< one past the last; first == last is an empty stage
  WeightBits weights = WeightBits::k8;
  KvBits kv = KvBits::k16;
  uint32_t threads = 1;  ///< 1 to 256
  Isa isa = Isa::kBest;
  /// Threads to share with other stages of this process, which must then not run at the same time;
  /// null: `threads` of its own.
  std::shared_ptr<ThreadPool> pool;
  /// Where quantized weights are taken from and kept; null: nowhere.
  std::shared_ptr<weights::PackedStore> cache;
  /// Experts stay in the cache's files, and those that are used most are copied into memory, up to
  /// so many bytes; the others are read when they are chosen. Needs a cache. Nothing: all are in
  /// memory.
  std::optional<uint64_t> experts_memory = std::nullopt;
  /// Told what each part of a pass takes; null: nothing is timed.
  std::shared_ptr<kernels::Profile> profile;
};

/// "best", or a set's name: "scalar", "avx2", …
std::string_view name(Isa isa);
/// Error kInvalid: not one of these names.
Result<Isa> parse_isa(std::string_view text);

/// Called while loading with bytes quantized so far and in all; from the loading thread.
/// Returns false to stop, which makes the load fail with kCancelled.
using LoadProgress = std::function<bool(uint64_t done, uint64_t total)>;

class Stage {
 public:
  Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage() = default;

  /// Reads the tensors of the stage's layers from `source`, quantizes and packs them. Each tensor
  /// is read once and dropped before the next, so that memory stays near bytes().
  static Result<std::unique_ptr<Stage>> load(const ModelConfig& config, const StageOptions& options,
                                             weights::TensorSource& source,
                                             const LoadProgress& progress);

  /// A conversation that may come to hold `context` positions: its memory grows ahead of what is
  /// needed, but never beyond state_bytes() of these. 0: not known, then only by what is needed.
  [[nodiscard]] virtual std::unique_ptr<Sequence> new_sequence(uint32_t context) = 0;
  [[nodiscard]] std::unique_ptr<Sequence> new_sequence() { return new_sequence(0); }
  /// Runs the layers over hidden.tokens() tokens, which are at positions `position`,
  /// `position` + 1, …; replaces `hidden` by the result and appends to the sequence's cache.
  /// `position` must equal sequence.length(), and the end must not pass the model's context.
  /// One call at a time for a stage. Errors leave the sequence's length as it was; but where layers
  /// are recurrent and the pass was wider than kernels::kRollbackWindow, an activation that is not
  /// finite leaves nothing, and the length is 0.
  [[nodiscard]] virtual Status run(Sequence& sequence, uint32_t position, HiddenStates& hidden) = 0;

  [[nodiscard]] virtual const StageOptions& options() const = 0;
  /// Bytes of weights held.
  [[nodiscard]] virtual uint64_t bytes() const = 0;
};

/// Bytes of weights that a stage of these layers will hold, and KV bytes a position and layer
/// needs, without loading anything.
uint64_t stage_bytes(const ModelConfig& config, const StageOptions& options);
uint64_t kv_bytes_per_position(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer,
                               KvBits bits = KvBits::k16);
/// KV bytes that a conversation of `context` positions comes to need in these layers: those with a
/// window hold what it sees and kernels::kWindowMargin positions more.
uint64_t kv_bytes(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer,
                  uint32_t context, KvBits bits = KvBits::k16);
/// The least length, other than 0, that layers with a window allow a rollback to once a pass has
/// begun at `position`; 0 if all do.
uint32_t window_floor(const ModelConfig& config, uint32_t position);

/// Bytes of recurrent state that a conversation has in these layers, whatever its length; 0 if they
/// are all attention.
uint64_t recurrent_bytes(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer);

/// What a conversation of `context` positions may come to need in these layers: KV cache, recurrent
/// state, checkpoints.
uint64_t state_bytes(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer,
                     uint32_t context, KvBits bits = KvBits::k16);
/// Bytes of these layers' weights that a pass of one token reads: of experts only the chosen ones.
uint64_t bytes_read(const ModelConfig& config, WeightBits weights, uint32_t first_layer,
                    uint32_t last_layer);

/// Bytes that `cache` holds of a model's layers and ends at these bits. Nothing is checked or read.
uint64_t cached_bytes(const ModelConfig& config, WeightBits bits,
                      const weights::TensorSource& source, const weights::PackedStore& cache);

/// Names of the tensors of layers [first, last) that loading them reads: all but those that
/// `cache`, which may be null, has quantized.
std::vector<std::string> tensors_to_read(const ModelConfig& config, uint32_t first, uint32_t last,
                                         WeightBits bits, const weights::TensorSource& source,
                                         const weights::PackedStore* cache);

/// Names, and expected shapes, of the tensors of layers [first, last) as the checkpoint stores
/// them. `dtype` is not meaningful. Tensors that several layers share do not exist.
std::vector<weights::TensorInfo> layer_tensors(const ModelConfig& config, uint32_t first_layer,
                                               uint32_t last_layer);

/// The host's part of a model: token embedding, final norm and output head.
class Ends {
 public:
  Ends() = default;
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  virtual ~Ends() = default;

  static Result<std::unique_ptr<Ends>> load(const ModelConfig& config, const StageOptions& options,
                                            weights::TensorSource& source,
                                            const LoadProgress& progress);

  /// Hidden states of `tokens`, the first of which is at `position`. Token ids outside the
  /// vocabulary are an error.
  [[nodiscard]] virtual Result<HiddenStates> embed(std::span<const uint32_t> tokens,
                                                   uint32_t position) = 0;
  /// Logits, float32 [count, vocab], of tokens [first, first + count) of `hidden`.
  /// `logits` is resized to count * vocab.
  [[nodiscard]] virtual Status logits(const HiddenStates& hidden, uint32_t first, uint32_t count,
                                      std::vector<float>& logits) = 0;
  /// The final norm's output, float32 [tokens, hidden_size], for comparison with other programs.
  [[nodiscard]] virtual Result<std::vector<float>> final_norm(const HiddenStates& hidden) = 0;
  [[nodiscard]] virtual uint64_t bytes() const = 0;
};

/// Bytes that Ends will hold.
uint64_t ends_bytes(const ModelConfig& config, WeightBits weights);

/// Names and expected shapes of the tensors that Ends loads.
std::vector<weights::TensorInfo> ends_tensors(const ModelConfig& config);

}  // namespace tandem::model
