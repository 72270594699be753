#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "weights/manifest.h"
#include "weights/mapped_file.h"

namespace tandem::weights {

namespace {

namespace fs = std::filesystem;

/// The folders in `folder`, ordered by name; those that can't be listed are none.
std::vector<fs::path> subfolders(const fs::path& folder, bool follow_links) {
  std::vector<fs::path> result;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    std::error_code ignored;
    const fs::file_status status =
        follow_links ? entry->status(ignored) : entry->symlink_status(ignored);
    if (fs::is_directory(status)) result.push_back(entry->path());
  }
  std::sort(result.begin(), result.end());
  return result;
}

bool has_config(const fs::path& folder) {
  std::error_code code;
  return fs::is_regular_file(folder / "config.json", code);
}

bool lists_same_tensors(const Checkpoint& checkpoint, const Manifest& wanted) {
  return std::ranges::equal(
      checkpoint.tensors(), wanted.tensors, [](const TensorInfo& a, const ManifestTensor& b) {
        return a.name == b.info.name && a.dtype == b.info.dtype && a.shape == b.info.shape;
      });
}

/// The checkpoint in `folder` (or file) if it is the wanted one, null if it is another.
Result<std::unique_ptr<Checkpoint>> match(const fs::path& folder, const Manifest& wanted,
                                          const Digest& wanted_hash, uint32_t threads,
                                          const HashProgress& progress) {
  if (has_config(folder)) {
    TANDEM_ASSIGN(const std::string config,
                  read_text_file(folder / "config.json", kMaxConfigBytes));
    // Most folders are another model, which their config alone tells; what becomes of a config with
    // quantized weights is known only when they are opened.
    const bool quantized = config.find("quantization_config") != std::string::npos ||
                           config.find("compression_config") != std::string::npos;
    if (!quantized && sha256(config) != wanted.config) return std::unique_ptr<Checkpoint>();
  }
  TANDEM_ASSIGN(auto checkpoint, Checkpoint::open(folder));
  if (checkpoint->partial()) return std::unique_ptr<Checkpoint>();
  if (sha256(checkpoint->config_json()) != wanted.config) return std::unique_ptr<Checkpoint>();
  if (!lists_same_tensors(*checkpoint, wanted)) return std::unique_ptr<Checkpoint>();
  TANDEM_ASSIGN(const Manifest manifest, make_manifest(*checkpoint, threads, progress));
  if (model_hash(manifest) != wanted_hash) return std::unique_ptr<Checkpoint>();
  tell_contents(manifest, *checkpoint);
  return checkpoint;
}

}  // namespace

Result<ModelLibrary> ModelLibrary::open(const fs::path& folder) {
  std::error_code code;
  ModelLibrary library;
  if (is_gguf(folder)) {
    library.folder_ = fs::absolute(folder, code).lexically_normal();
    return library;
  }
  library.folder_ = fs::canonical(folder, code);
  if (code) {
    return Error{
        code == std::errc::no_such_file_or_directory ? ErrorKind::kNotFound : ErrorKind::kIo,
        folder.string() + ": can't open the folder of models: " + code.message()};
  }
  if (!fs::is_directory(library.folder_, code)) {
    return invalid(folder.string() + ": expected a folder of models, found a file");
  }
  // Listing it once shows now, rather than as "not found" later, that it may not be read.
  const fs::directory_iterator probe(library.folder_, code);
  if (code) {
    return Error{ErrorKind::kIo,
                 folder.string() + ": can't list the folder of models: " + code.message()};
  }
  return library;
}

std::vector<fs::path> ModelLibrary::folders() const {
  std::vector<fs::path> result;
  std::error_code code;
  if (!fs::is_directory(folder_, code)) return {folder_};
  const auto add = [&](const fs::path& folder) {
    if (has_config(folder)) result.push_back(folder);
    const auto files = gguf_models(folder);
    result.insert(result.end(), files.begin(), files.end());
  };
  add(folder_);
  for (const fs::path& first : subfolders(folder_, true)) {
    add(first);
    for (const fs::path& second : subfolders(first, false)) add(second);
  }
  return result;
}

Result<std::unique_ptr<Checkpoint>> ModelLibrary::find(const Manifest& wanted, uint32_t threads,
                                                       const HashProgress& progress) const {
  const Digest wanted_hash = model_hash(wanted);
  std::string problem;
  size_t unreadable = 0;
  const auto candidates = folders();
  for (const fs::path& folder : candidates) {
    auto found = match(folder, wanted, wanted_hash, threads, progress);
    if (found.ok() && *found != nullptr) return found;
    if (found.ok()) continue;
    if (found.error().kind == ErrorKind::kCancelled) return found;
    if (++unreadable == 1) problem = found.error().message;
  }
  std::string message = folder_.string() + ": none of " + std::to_string(candidates.size()) +
                        " models holds the model " + hex(wanted_hash);
  if (unreadable > 0) {
    message += "; " + std::to_string(unreadable) + " could not be read, the first: " + problem;
  }
  return Error{ErrorKind::kNotFound, std::move(message)};
}

}  // namespace tandem::weights
