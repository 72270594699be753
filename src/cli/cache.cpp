#include "cli/cache.h"

#include <chrono>
#include <cstdlib>

#include "cli/output.h"

namespace tandem::cli {

void add_cache_flag(Flags& flags, std::string& value) {
  flags.add("--cache", "DIR|off", value, "folder of quantized weights (default: ~/.cache/tandem)");
}

Result<std::shared_ptr<weights::PackedCache>> open_cache(const std::string& flag, bool quiet,
                                                         bool copied) {
  if (flag == "off") return std::shared_ptr<weights::PackedCache>();
  weights::PackedCacheOptions options;
  options.copied = copied;
  std::error_code code;
  options.folder = flag.empty() ? weights::cache_folder() : std::filesystem::absolute(flag, code);
  if (options.folder.empty()) return std::shared_ptr<weights::PackedCache>();
  options.folder /= "weights";
  const char* limit = std::getenv("TANDEM_CACHE_LIMIT");
  if (limit != nullptr && *limit != 0) {
    auto bytes = parse_size(limit);
    if (!bytes.ok()) return bytes.error().in("TANDEM_CACHE_LIMIT");
    options.limit = *bytes;
  }
  if (!quiet) {
    options.notice = [](const std::string& line) { note(line + "\n"); };
  }
  return std::make_shared<weights::PackedCache>(std::move(options));
}

void finish_cache(weights::PackedCache* cache, bool quiet) {
  if (cache == nullptr) return;
  ProgressLine line;
  cache->finish(std::chrono::steady_clock::time_point::max(), &cancel_flag(),
                [&](uint64_t done, uint64_t total) {
                  if (!quiet) line.show("keeping the quantized weights", done, total);
                });
  line.clear();
}

}  // namespace tandem::cli
