// Reading the small files of a model folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"

namespace tandem::text {

/// The whole file; nothing if there is none. Fails if it is larger than `limit` or unreadable.
Result<std::optional<std::string>> read_file(const std::filesystem::path& path, uint64_t limit);

/// tokenizer_config.json, generation_config.json and templates are at most this large.
constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 24;

}  // namespace tandem::text
