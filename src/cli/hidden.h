// Hidden states at every layer boundary, for comparison with other programs.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "cli/session.h"
#include "weights/safetensors.h"

namespace tandem::cli {

/// Writes float32 [layers + 1, tokens, hidden_size]: the embedding's output, then what each layer
/// gives, the last layer's after the final norm (as transformers' output_hidden_states). Runs in
/// this process, one layer in memory at a time, in passes of `width` tokens.
Status write_hidden(const Model& model, model::Ends& ends, const model::StageOptions& options,
                    std::span<const uint32_t> tokens, uint32_t width,
                    weights::SafetensorsWriter& writer);

}  // namespace tandem::cli
