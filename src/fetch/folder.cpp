#include "fetch/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "weights/mapped_file.h"

namespace tandem::fetch {

namespace {

namespace fs = std::filesystem;
using weights::PulledFile;
using weights::PulledPiece;

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 44;  // what file systems take
constexpr size_t kBuffer = size_t{1} << 20;

Error failed(const fs::path& path, const char* what) {
  return {ErrorKind::kIo, path.string() + ": can't " + what + ": " + std::strerror(errno)};
}

Status write_all(int descriptor, uint64_t offset, std::span<const std::byte> bytes,
                 const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed(path, "write");
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Folder>> Folder::open(const fs::path& path,
                                             std::chrono::milliseconds patience,
                                             const std::atomic<bool>* cancel) {
  const auto until = Clock::now() + patience;
  for (;;) {
    std::error_code code;
    fs::create_directories(path, code);
    if (code) return Error{ErrorKind::kIo, path.string() + ": can't make it: " + code.message()};
    std::unique_ptr<Folder> folder(new Folder(fs::canonical(path, code)));
    TANDEM_ASSIGN(const bool locked, folder->lock(until, cancel));
    if (!locked) continue;
    TANDEM_TRY(folder->open_journal());
    return folder;
  }
}

Result<bool> Folder::lock(Clock::time_point until, const std::atomic<bool>* cancel) {
  const fs::path lock = path_ / kLockName;
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  const bool again = errno == ENOENT && Clock::now() < until;
  if (lock_ < 0 && again) return false;  // removed just now, as below
  if (lock_ < 0) return failed(lock, "open");
  while (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (cancel != nullptr && *cancel) return Error{ErrorKind::kCancelled, "cancelled"};
    if (errno != EWOULDBLOCK && errno != EINTR) return failed(lock, "lock");
    if (Clock::now() >= until) {
      return Error{ErrorKind::kPeer, path_.string() + ": another process is fetching into it"};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  // Who waited for somebody that removed the folder holds a lock that nobody else sees.
  struct stat held {};
  struct stat seen {};
  return ::fstat(lock_, &held) == 0 && ::lstat(lock.c_str(), &seen) == 0 &&
         held.st_dev == seen.st_dev && held.st_ino == seen.st_ino;
}

Status Folder::sync_names() const {
  const int folder = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return failed(path_, "open");
  const bool synced = ::fsync(folder) == 0 || errno == EINVAL;
  const Status status = synced ? Status() : failed(path_, "sync");
  ::close(folder);
  return status;
}

Status Folder::open_journal() {
  const fs::path path = path_ / weights::kJournalName;
  std::error_code code;
  const bool fresh = !fs::exists(path, code);
  log_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (log_ < 0) return failed(path, "open");
  // Shared: readers may come, whoever wants to remove the folder may not.
  if (::flock(log_, LOCK_SH | LOCK_NB) != 0) {
    return Error{ErrorKind::kPeer, path_.string() + ": another process is removing it"};
  }
  if (!fresh) {
    TANDEM_ASSIGN(const std::string text, weights::read_text_file(path, weights::kMaxJournalBytes));
    auto parsed = weights::Journal::parse(text, log_size_);
    if (!parsed.ok()) return parsed.error().in(path.string());
    journal_ = std::move(*parsed);
    if (::ftruncate(log_, static_cast<off_t>(log_size_)) != 0) return failed(path, "cut");
  }
  files_.assign(journal_.files.size(), -1);
  partial_ = fs::exists(path_ / weights::kPartialName, code);
  (void)::futimens(log_, nullptr);
  if (log_size_ != 0) return {};
  TANDEM_TRY(append(weights::journal_header()));
  return sync_names();
}

Folder::~Folder() {
  for (const int file : files_) {
    if (file >= 0) ::close(file);
  }
  if (log_ >= 0) ::close(log_);
  if (lock_ >= 0) ::close(lock_);
}

std::optional<size_t> Folder::find(std::string_view name) const {
  const PulledFile* file = journal_.find(name);
  if (file == nullptr) return std::nullopt;
  return static_cast<size_t>(file - journal_.files.data());
}

Status Folder::mark(bool partial) {
  if (partial == partial_) return {};
  const fs::path path = path_ / weights::kPartialName;
  if (!partial) {
    ::unlink(path.c_str());
  } else {
    const int made = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (made < 0) return failed(path, "make");
    ::close(made);
  }
  partial_ = partial;
  return {};
}

Status Folder::append(const std::string& line) {
  const fs::path path = path_ / weights::kJournalName;
  TANDEM_TRY(write_all(log_, log_size_, std::as_bytes(std::span(line)), path));
  log_size_ += line.size();
  return {};
}

Result<int> Folder::descriptor(size_t file) {
  int& open = files_.at(file);
  if (open >= 0) return open;
  const fs::path path = path_ / journal_.files[file].name;
  open = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (open < 0) return failed(path, "open");
  struct stat status {};
  const auto size = static_cast<off_t>(journal_.files[file].size);
  if (::fstat(open, &status) != 0) return failed(path, "stat");
  if (!S_ISREG(status.st_mode)) return invalid(path.string() + ": expected a regular file");
  // A file of another size is not the one that the journal tells of; what is missing of it now
  // does not have the hashes that are written there.
  if (status.st_size != size && ::ftruncate(open, size) != 0) return failed(path, "resize");
  return open;
}

Status Folder::set_model(const std::string& model, const std::string& revision,
                         const std::string& commit) {
  if (journal_.model == model && journal_.revision == revision && journal_.commit == commit) {
    return {};
  }
  TANDEM_TRY(append(weights::model_line(model, revision, commit)));
  journal_.model = model;
  journal_.revision = revision;
  journal_.commit = commit;
  return {};
}

Result<size_t> Folder::add(const std::string& name, uint64_t size,
                           const std::optional<Digest>& sha256) {
  if (!weights::is_plain_file_name(name) || name == weights::kJournalName ||
      name == weights::kPartialName || name == kLockName) {
    return invalid("\"" + name + "\" is no name for a model's file");
  }
  if (size > kMaxFileBytes || journal_.files.size() >= weights::kMaxPulledFiles) {
    return unsupported(name + ": too large, or one file too many");
  }
  PulledFile file;
  file.name = name;
  file.size = size;
  file.sha256 = sha256;
  TANDEM_TRY(mark(true));
  TANDEM_TRY(append(weights::file_line(file)));
  journal_.files.push_back(std::move(file));
  files_.push_back(-1);
  const size_t index = files_.size() - 1;
  TANDEM_TRY(descriptor(index));
  // After a loss of power no piece may be known of a file that has no name.
  TANDEM_TRY(sync_names());
  return index;
}

Status Folder::tag(size_t file, const std::string& source, const std::string& tag) {
  std::string& own = journal_.files.at(file).tags[source];
  if (tag.empty() || own == tag) return {};
  TANDEM_TRY(append(weights::tag_line(file, source, tag)));
  own = tag;
  return {};
}

Status Folder::write(size_t file, uint64_t offset, std::span<const std::byte> bytes,
                     const std::string& source) {
  TANDEM_ASSIGN(const int open, descriptor(file));
  const fs::path path = path_ / journal_.files[file].name;
  TANDEM_TRY(write_all(open, offset, bytes, path));
  // After a loss of power the journal must not tell of bytes that never reached the disk.
  if (::fdatasync(open) != 0) return failed(path, "write");
  PulledPiece piece{bytes.size(), sha256(bytes), source};
  TANDEM_TRY(append(weights::have_line(file, offset, piece)));
  journal_.files[file].pieces.emplace(offset, std::move(piece));
  return {};
}

Status Folder::lose(size_t file, uint64_t offset) {
  TANDEM_TRY(mark(true));
  TANDEM_TRY(append(weights::lost_line(file, offset)));
  journal_.files.at(file).pieces.erase(offset);
  return {};
}

Status Folder::forget(size_t file) {
  TANDEM_TRY(append(weights::forget_line(file)));
  // Whoever has the old file mapped keeps it.
  ::unlink((path_ / journal_.files.at(file).name).c_str());
  journal_.files[file] = PulledFile();
  if (files_[file] >= 0) ::close(files_[file]);
  files_[file] = -1;
  return {};
}

Status Folder::read(size_t file, uint64_t offset, std::span<std::byte> out) {
  TANDEM_ASSIGN(const int open, descriptor(file));
  while (!out.empty()) {
    const ssize_t count = ::pread(open, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed(path_ / journal_.files[file].name, "read");
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
  return {};
}

Result<Digest> Folder::hash(size_t file, uint64_t offset, uint64_t length) {
  std::vector<std::byte> buffer(static_cast<size_t>(std::min<uint64_t>(kBuffer, length)));
  Sha256 hash;
  while (length > 0) {
    const auto part =
        std::span(buffer).first(static_cast<size_t>(std::min<uint64_t>(buffer.size(), length)));
    TANDEM_TRY(read(file, offset, part));
    hash.update(part);
    offset += part.size();
    length -= part.size();
  }
  return hash.digest();
}

}  // namespace tandem::fetch
