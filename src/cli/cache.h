// The folder of quantized weights, as the commands use it.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "cli/flags.h"
#include "weights/packed_cache.h"

namespace tandem::cli {

/// --cache DIR|off.
void add_cache_flag(Flags& flags, std::string& value);
/// The cache that `flag` names: a folder, "off", or nothing for the usual one; its size limited by
/// $TANDEM_CACHE_LIMIT. Null if there is to be none. `quiet`: no notices. `copied`: as in
/// PackedCacheOptions. Error: kInvalid (the limit).
Result<std::shared_ptr<weights::PackedCache>> open_cache(const std::string& flag, bool quiet,
                                                         bool copied = false);
/// Writes what is not written yet, saying so, until Ctrl-C. `cache` may be null.
void finish_cache(weights::PackedCache* cache, bool quiet);

}  // namespace tandem::cli
