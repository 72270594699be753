// The cache of models: what is there, and making room.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fetch/folder.h"
#include "weights/mapped_file.h"
#include "weights/packed_cache.h"

namespace tandem::fetch {

namespace {

namespace fs = std::filesystem;

bool has_journal(const fs::path& folder) {
  std::error_code code;
  return fs::is_regular_file(fs::symlink_status(folder / weights::kJournalName, code));
}

uint64_t disk_bytes(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    struct stat status {};
    if (::lstat(entry.path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

std::vector<fs::path> folders_in(const fs::path& root) {
  std::vector<fs::path> result;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(root, code)) {
    std::error_code ignored;
    if (fs::is_directory(entry.symlink_status(ignored))) result.push_back(entry.path());
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

fs::path Store::usual_root() {
  const fs::path cache = weights::cache_folder();
  return cache.empty() ? cache : cache / "models";
}

fs::path Store::path_of(const ModelName& model) const {
  std::string name = model.name;
  if (model.revision != "main") {
    // "@" stands in no name and no revision, so that different revisions have different folders.
    std::string revision = model.revision;
    for (size_t at = 0; (at = revision.find('/', at)) != std::string::npos;) revision[at] = '@';
    name += "@" + revision;
  }
  return model.organization.empty() ? root_ / name : root_ / model.organization / name;
}

std::optional<fs::path> Store::find(const ModelName& model) const {
  const fs::path path = path_of(model);
  if (root_.empty() || !has_journal(path)) return std::nullopt;
  return path;
}

std::vector<StoredModel> Store::list() const {
  std::vector<StoredModel> models;
  const auto look = [&](const fs::path& folder) {
    if (!has_journal(folder)) return false;
    const fs::path path = folder / weights::kJournalName;
    const auto text = weights::read_text_file(path, weights::kMaxJournalBytes);
    if (!text.ok()) return true;
    uint64_t good = 0;
    auto journal = weights::Journal::parse(*text, good);
    std::error_code code;
    StoredModel model{folder, {}, disk_bytes(folder), fs::last_write_time(path, code)};
    if (journal.ok()) model.journal = std::move(*journal);
    models.push_back(std::move(model));
    return true;
  };
  for (const fs::path& first : folders_in(root_)) {
    if (look(first)) continue;
    for (const fs::path& second : folders_in(first)) look(second);
  }
  return models;
}

bool Store::remove(const StoredModel& model) const {
  const fs::path journal = model.path / weights::kJournalName;
  const fs::path lock = model.path / kLockName;
  const int readers = ::open(journal.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (readers < 0) return false;
  const int writers = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  const bool free = writers >= 0 && ::flock(writers, LOCK_EX | LOCK_NB) == 0 &&
                    ::flock(readers, LOCK_EX | LOCK_NB) == 0;
  if (free) {
    // The journal last: without it files with holes would pass for whole ones.
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(model.path, code)) {
      const fs::path& path = entry.path();
      if (path != journal && path != lock) ::unlink(path.c_str());
    }
    ::unlink(journal.c_str());
    ::unlink(lock.c_str());
    ::rmdir(model.path.c_str());
    if (model.path.parent_path() != root_) ::rmdir(model.path.parent_path().c_str());
  }
  ::close(readers);
  if (writers >= 0) ::close(writers);
  return free;
}

Status Store::make_room(uint64_t bytes, uint64_t limit, const fs::path& own,
                        const std::function<void(const StoredModel&)>& removed) const {
  std::error_code code;
  fs::create_directories(root_, code);
  std::vector<StoredModel> models = list();
  uint64_t used = 0;
  for (const StoredModel& model : models) used += model.bytes;
  const auto room = [&]() -> uint64_t {
    uint64_t left = limit > used ? limit - used : 0;
    struct statvfs disk {};
    if (::statvfs(root_.c_str(), &disk) == 0) {
      const uint64_t whole = uint64_t{disk.f_blocks} * disk.f_frsize;
      const uint64_t reserve = std::min(whole / 20, uint64_t{2} << 30);
      const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
      left = std::min(left, free > reserve ? free - reserve : 0);
    }
    return left;
  };
  std::sort(models.begin(), models.end(),
            [](const auto& a, const auto& b) { return a.used < b.used; });
  for (const StoredModel& model : models) {
    if (room() >= bytes) return {};
    if (fs::equivalent(model.path, own, code) || !remove(model)) continue;
    used -= model.bytes;
    if (removed) removed(model);
  }
  if (room() >= bytes) return {};
  return Error{ErrorKind::kMemory, root_.string() + ": " + std::to_string(bytes) +
                                       " bytes more are needed, room is for " +
                                       std::to_string(room()) + " (limit " + std::to_string(limit) +
                                       ", in use " + std::to_string(used) +
                                       "); --limit raises it, --to DIR goes elsewhere"};
}

}  // namespace tandem::fetch
