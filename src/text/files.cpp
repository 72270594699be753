#include "text/files.h"

#include <fstream>

namespace tandem::text {

Result<std::optional<std::string>> read_file(const std::filesystem::path& path, uint64_t limit) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (status.type() == std::filesystem::file_type::not_found) return std::optional<std::string>();
  if (!std::filesystem::is_regular_file(status)) {
    return Error{ErrorKind::kIo, path.string() + ": not a regular file"};
  }
  const uint64_t size = std::filesystem::file_size(path, code);
  if (code) return Error{ErrorKind::kIo, path.string() + ": " + code.message()};
  if (size > limit) {
    return invalid(path.string() + ": " + std::to_string(size) + " bytes, at most " +
                   std::to_string(limit) + " are allowed");
  }
  std::ifstream stream(path, std::ios::binary);
  std::string content(size, '\0');
  stream.read(content.data(), static_cast<std::streamsize>(size));
  if (!stream || static_cast<uint64_t>(stream.gcount()) != size) {
    return Error{ErrorKind::kIo, path.string() + ": cannot be read"};
  }
  return std::optional<std::string>(std::move(content));
}

}  // namespace tandem::text
