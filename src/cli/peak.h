// How many multiply-adds this machine's cores do a second, to see which share a pass reaches.
#pragma once

#include <string_view>

#include "base/thread_pool.h"

namespace tandem::cli {

/// Products of an 8-bit weight and a 16-bit activation, added up, a second, by all threads of the
/// pool from registers: with "amx" and "avx512" two byte planes, with "avx2" as 16-bit pairs. 0 for
/// other sets.
double multiply_add_peak(ThreadPool& pool, std::string_view isa);

}  // namespace tandem::cli
