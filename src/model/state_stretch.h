// A conversation's state made longer without running it: what a measurement at a long context
// starts from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace tandem::model {

/// `state`, what Sequence::write() gave for all layers of `config`, with `length` positions: the
/// keys and values that it has, over and over. The numbers are those of no conversation; what
/// attention over them takes is the same. Errors: kUnsupported (a model with recurrent layers or
/// sliding windows, where a context costs nothing, or not all of it), kInvalid (`state` holds no
/// position, more than `length`, or is not of these layers).
Result<std::vector<std::byte>> stretch_state(std::span<const std::byte> state,
                                             const ModelConfig& config, uint32_t length);

}  // namespace tandem::model
