// Files of a folder of models, by byte range, and their hashes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace tandem::hub {

/// One file as it was when it was listed.
struct ModelFile {
  std::shared_ptr<const int> descriptor;  ///< open as long as somebody reads
  uint64_t size = 0;
  std::string etag;  ///< of size, times and inode: changes whenever the file does
};

/// Serves the files that lie directly in the folders of `folder`, but hidden ones, and GGUF files
/// in `folder` itself, each a model of its own name with one file of that name. Names from outside
/// are only compared with names found there. Thread-safe.
class ModelServer {
 public:
  static constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

  /// Errors: kNotFound, kIo.
  static Result<std::unique_ptr<ModelServer>> open(const std::filesystem::path& folder);
  ~ModelServer();
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  /// Models and the names and sizes of their files.
  [[nodiscard]] std::map<std::string, std::map<std::string, uint64_t>> list() const;
  /// Errors: kNotFound, kIo.
  [[nodiscard]] Result<ModelFile> find(const std::string& model, const std::string& file) const;
  /// SHA-256 of each chunk of kChunkBytes of a file (64 digits each), hashed once in the
  /// background. Errors: kNotFound; kCancelled: not hashed yet, ask again.
  Result<std::vector<std::string>> chunks(const std::string& model, const std::string& file);

 private:
  explicit ModelServer(std::filesystem::path folder);
  [[nodiscard]] Result<std::filesystem::path> path_of(const std::string& model,
                                                      const std::string& file) const;
  void hash_files();

  std::filesystem::path folder_;
  std::mutex mutex_;  ///< guards wanted_ and hashed_
  std::vector<std::pair<std::filesystem::path, std::string>> wanted_;  ///< path, etag
  std::map<std::string, std::vector<std::string>> hashed_;             ///< by path and etag
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tandem::hub
