// How fast this machine reads memory: the bound on decoding, which reads every weight once a token.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace tandem::cli {

/// Bytes a second of a plain streaming read by all threads of `pool`, over a buffer of at least
/// four times the last cache; the best of several passes. 0 if there is no memory for the buffer.
double read_bandwidth(ThreadPool& pool);

}  // namespace tandem::cli
