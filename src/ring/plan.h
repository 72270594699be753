// Which layers lie where: the user's ranges, or even shares.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::ring {

/// A run of layers, [first, last).
struct LayerRange {
  uint32_t first = 0;
  uint32_t last = 0;

  [[nodiscard]] uint32_t count() const { return last - first; }
  bool operator==(const LayerRange&) const = default;
};

/// Reads "0-3,4-7" or "0-3,5,8-11": one range a worker, in rising order, with both ends inclusive;
/// a single number is one layer. Layers that no range names are the host's.
/// Errors (kInvalid) say which range is malformed, turned round, out of order, overlapping, or past
/// the model's `layers`, and if the count is not `workers`.
Result<std::vector<LayerRange>> parse_split(std::string_view text, uint32_t layers,
                                            uint32_t workers);

/// Shares all layers evenly; where it does not come out even, the last workers get one layer less.
/// Error: kInvalid if there are more workers than layers, or none.
Result<std::vector<LayerRange>> split_evenly(uint32_t layers, uint32_t workers);

/// Checks that ranges are not empty, rise, don't overlap and end by `layers`. Error: kInvalid.
Status check_split(const std::vector<LayerRange>& ranges, uint32_t layers);

/// Tokens of one frame for a prompt of `tokens` that goes through `stages` stages (1 or more): few
/// enough that all stages soon have work, many enough that a pass's fixed cost does not show. 16 to
/// kMostTokensChosen, a multiple of 4.
inline constexpr uint32_t kMostTokensChosen = 128;
/// The most for a mixture of experts in one stage, whose experts see only a part of the tokens
/// each.
inline constexpr uint32_t kMostTokensOfExperts = 512;
uint32_t frame_tokens(uint32_t tokens, uint32_t stages);

/// "4-7", both ends inclusive; "none" for an empty range.
std::string text(const LayerRange& range);

}  // namespace tandem::ring
