#include "hub/server/model_server.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/hash.h"
#include "weights/journal.h"

namespace tandem::hub {
namespace {

namespace fs = std::filesystem;
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr size_t kMaxHashed = 4096;  ///< files; 300 bytes a chunk

bool plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name[0] != '.' &&
         name.find('/') == std::string::npos;
}

/// A file itself, or a link to one: Hugging Face's cache is made of links. Where a link leads is
/// the choice of whoever set up the folder; what never happens is that a request chooses.
bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// A folder that some bytes of are still to be fetched to has files with holes.
bool is_whole(const fs::path& folder) {
  std::error_code error;
  return !fs::exists(folder / weights::kPartialName, error);
}

Error missing() {
  return {ErrorKind::kNotFound, "there is no such file of a model here"};
}

}  // namespace

ModelServer::ModelServer(fs::path folder) : folder_(std::move(folder)) {
  thread_ = std::thread([this] { hash_files(); });
}

ModelServer::~ModelServer() {
  stop_ = true;
  thread_.join();
}

Result<std::unique_ptr<ModelServer>> ModelServer::open(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return Error{ErrorKind::kNotFound, folder.string() + ": there is no such folder of models"};
  }
  return std::unique_ptr<ModelServer>(new ModelServer(folder));
}

std::map<std::string, std::map<std::string, uint64_t>> ModelServer::list() const {
  std::map<std::string, std::map<std::string, uint64_t>> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (!plain_name(name) || !entry.is_directory(error) || !is_whole(entry.path())) continue;
    for (const auto& file : fs::directory_iterator(entry.path(), error)) {
      const std::string inner = file.path().filename().string();
      if (plain_name(inner) && is_file(file.path())) {
        models[name][inner] = fs::file_size(file.path(), error);
      }
    }
  }
  return models;
}

Result<fs::path> ModelServer::path_of(const std::string& model, const std::string& file) const {
  if (!plain_name(model) || !plain_name(file)) return missing();
  // Names are looked for among those that are there, so that none is ever made into a path.
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().filename().string() != model || !entry.is_directory(error)) continue;
    if (!is_whole(entry.path())) return missing();
    for (const auto& inner : fs::directory_iterator(entry.path(), error)) {
      if (inner.path().filename().string() == file && is_file(inner.path())) return inner.path();
    }
  }
  return missing();
}

Result<ModelFile> ModelServer::find(const std::string& model, const std::string& file) const {
  TANDEM_ASSIGN(const fs::path path, path_of(model, file));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Error{ErrorKind::kIo, path.string() + ": " + std::strerror(errno)};
  ModelFile result;
  result.descriptor = std::shared_ptr<const int>(new int(fd), [](const int* owned) {
    ::close(*owned);
    delete owned;
  });
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return missing();
  result.size = static_cast<uint64_t>(status.st_size);
  const std::string identity =
      std::to_string(status.st_size) + " " + std::to_string(status.st_ino) + " " +
      std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec) + " " +
      std::to_string(status.st_ctim.tv_sec) + "." + std::to_string(status.st_ctim.tv_nsec);
  result.etag = "\"" + hex(sha256(identity)).substr(0, 32) + "\"";
  return result;
}

Result<std::vector<std::string>> ModelServer::chunks(const std::string& model,
                                                     const std::string& file) {
  TANDEM_ASSIGN(const fs::path path, path_of(model, file));
  TANDEM_ASSIGN(const ModelFile found, find(model, file));
  const std::lock_guard lock(mutex_);
  const auto known = hashed_.find(path.string() + found.etag);
  if (known != hashed_.end()) return known->second;
  const std::pair wanted(path, found.etag);
  if (std::find(wanted_.begin(), wanted_.end(), wanted) == wanted_.end() &&
      wanted_.size() < kMaxHashed) {
    wanted_.push_back(wanted);
  }
  return Error{ErrorKind::kCancelled, "the file is being hashed; ask again"};
}

void ModelServer::hash_files() {
  std::vector<std::byte> buffer(1 << 20);
  while (!stop_) {
    std::pair<fs::path, std::string> next;
    {
      const std::lock_guard lock(mutex_);
      if (!wanted_.empty()) next = wanted_.front();
    }
    if (next.first.empty()) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    std::vector<std::string> chunks;
    const int fd = ::open(next.first.c_str(), O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0;
    for (bool end = false; ok && !end && !stop_;) {
      Sha256 hash;
      uint64_t done = 0;
      while (done < kChunkBytes && !end && ok) {
        const ssize_t count =
            ::read(fd, buffer.data(), std::min<uint64_t>(buffer.size(), kChunkBytes - done));
        if (count < 0 && errno == EINTR) continue;
        ok = count >= 0;
        end = count == 0;
        if (count > 0) {
          hash.update(std::span(buffer.data(), static_cast<size_t>(count)));
          done += static_cast<uint64_t>(count);
        }
      }
      if (ok && (done > 0 || chunks.empty())) chunks.push_back(hex(hash.digest()));
    }
    if (fd >= 0) ::close(fd);
    const std::lock_guard lock(mutex_);
    std::erase(wanted_, next);
    if (hashed_.size() >= kMaxHashed) hashed_.clear();
    if (ok && !stop_) hashed_[next.first.string() + next.second] = std::move(chunks);
  }
}

}  // namespace tandem::hub
