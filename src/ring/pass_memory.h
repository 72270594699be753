// What a worker needs beside weights, KV caches and recurrent state.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace tandem::ring {

/// Bytes that passes of kMostTokensChosen tokens through layers of this model take at most: hidden
/// states on their way in and out, and what is computed between them. Thread-safe.
uint64_t pass_bytes(const model::ModelConfig& config);

/// Bytes of physical memory that this process has now, program and libraries included, as the
/// kernel counts it; 0 if it does not say.
uint64_t resident_memory();

}  // namespace tandem::ring
