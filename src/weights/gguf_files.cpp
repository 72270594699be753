// Where GGUF models are on a disk, and which files make one.
#include <algorithm>
#include <optional>
#include <string>
#include <system_error>

#include "weights/gguf.h"

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnd = ".gguf";

/// The numbers of PREFIX-00001-of-00003.gguf.
struct PartName {
  std::string prefix;
  uint32_t number = 0;
  uint32_t count = 0;
};

std::optional<uint32_t> five_digits(std::string_view text) {
  uint32_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  return value;
}

std::optional<PartName> part_name(const std::string& name) {
  constexpr std::string_view kOf = "-of-";
  constexpr size_t kDigits = 5;
  constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kEnd.size();
  if (name.size() <= kTail || !name.ends_with(kEnd)) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(name.size() - kTail);
  const auto number = five_digits(rest.substr(1, kDigits));
  const auto count = five_digits(rest.substr(1 + kDigits + kOf.size(), kDigits));
  if (rest[0] != '-' || rest.substr(1 + kDigits, kOf.size()) != kOf || !number || !count) {
    return std::nullopt;
  }
  return PartName{name.substr(0, name.size() - kTail), *number, *count};
}

std::string padded(uint32_t number) {
  std::string digits = std::to_string(number);
  return std::string(5 - digits.size(), '0') + digits;
}

}  // namespace

bool is_gguf(const fs::path& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return false;
  const auto file = MappedFile::open(path);
  return file.ok() && looks_like_gguf((*file)->bytes());
}

std::vector<fs::path> gguf_models(const fs::path& folder) {
  std::vector<fs::path> models;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (!name.ends_with(kEnd) || name.starts_with("mmproj") || name.starts_with('.')) continue;
    const auto part = part_name(name);
    if (part && part->number != 1) continue;
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) models.push_back(entry->path());
  }
  std::sort(models.begin(), models.end());
  return models;
}

Result<std::vector<fs::path>> gguf_parts(const fs::path& path) {
  const auto name = part_name(path.filename().string());
  if (!name) return std::vector{path};
  if (name->number != 1) {
    return invalid(path.string() + ": expected the first part of a split file, found part " +
                   std::to_string(name->number));
  }
  if (name->count < 1 || name->count > kMaxGgufParts) {
    return invalid(path.string() + ": expected 1 to " + std::to_string(kMaxGgufParts) +
                   " parts, found " + std::to_string(name->count));
  }
  std::vector<fs::path> parts;
  for (uint32_t i = 1; i <= name->count; ++i) {
    parts.push_back(path.parent_path() / (name->prefix + "-" + padded(i) + "-of-" +
                                          padded(name->count) + std::string(kEnd)));
  }
  return parts;
}

}  // namespace tandem::weights
