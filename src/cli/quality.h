// What quantizing a model's weights costs, measured.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "cli/session.h"

namespace tandem::cli {

/// Weights of one kind ("self_attn.q_proj" of all layers).
struct KindQuality {
  std::string kind;
  std::string stored_as;  ///< what the files hold; several types joined by commas
  uint64_t tensors = 0;
  uint64_t weights = 0;
  double squares = 0;  ///< sum over the weights that the files stand for
  double error_8 = 0;  ///< sum of squared differences at 8 bits
  double error_4 = 0;  ///< at 4, the ends at 6

  /// Root of the mean squared difference over that of the weights.
  [[nodiscard]] double relative_8() const;
  [[nodiscard]] double relative_4() const;
};

/// Quantizes every matrix but routers both ways, as loading does, and compares. The last entry, of
/// kind "all", is the sum. Errors: those of reading and quantizing; kCancelled.
Result<std::vector<KindQuality>> measure_quality(const Model& model, ThreadPool& pool,
                                                 const std::atomic<bool>& cancel);

/// The types that a checkpoint's files hold, with the numbers of tensors: "84 Q4_K, 49 F32".
std::string stored_types(const weights::Checkpoint& checkpoint);

/// A tensor's name without its layer's (and expert's) number and ".weight".
std::string tensor_kind(const std::string& name);

}  // namespace tandem::cli
