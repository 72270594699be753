// How entries of the cache are written: atomically, by one process at a time, within a limit, and
// never to the last byte of a disk.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "weights/checksum.h"
#include "weights/packed_cache.h"

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWriting = ".writing";
constexpr uint64_t kPiece = uint64_t{8} << 20;
// What is left free on the disk: a twentieth of it, but not more than this.
constexpr uint64_t kMostLeftFree = uint64_t{2} << 30;

std::string system_text(const fs::path& path, const char* what, int code) {
  return path.string() + ": can't " + what + ": " + std::generic_category().message(code);
}

/// A file, closed at the end; with `path` also deleted, unless it was kept.
struct Temporary {
  int descriptor = -1;
  fs::path path;
  Temporary() = default;
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!path.empty()) ::unlink(path.c_str());
    if (descriptor >= 0) ::close(descriptor);
  }
};

/// A lock on a folder, waited for; held by one thread of all processes.
struct FolderLock {
  int descriptor = -1;
  explicit FolderLock(const fs::path& folder)
      : descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (descriptor >= 0 && ::flock(descriptor, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

/// True if the descriptor is still the file of that name.
bool same_file(int descriptor, const fs::path& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

/// Deletes what a process that was killed left half written.
void remove_if_abandoned(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && same_file(descriptor, path)) {
    ::unlink(path.c_str());
  }
  ::close(descriptor);
}

bool write_all(int file, std::span<const std::byte> bytes, uint64_t offset,
               const std::atomic<bool>& stop) {
  while (!bytes.empty()) {
    if (stop) {
      errno = ECANCELED;
      return false;
    }
    const ssize_t count = ::pwrite(file, bytes.data(), std::min<size_t>(bytes.size(), kPiece),
                                   static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

/// The checksum of what was written, from `begin` to `end`. A mapping would count as memory of this
/// process.
bool read_checksum(int file, uint64_t begin, uint64_t end, Digest& digest) {
  std::vector<std::byte> buffer(kChecksumBlock);
  std::vector<LineSums> sums;
  for (uint64_t offset = begin; offset < end; offset += kChecksumBlock) {
    const auto block = std::span(buffer).first(std::min(kChecksumBlock, end - offset));
    for (size_t done = 0; done < block.size();) {
      const ssize_t count = ::pread(file, block.data() + done, block.size() - done,
                                    static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      done += static_cast<size_t>(count);
    }
    sums.push_back(line_sums(block));
  }
  digest = checksum(end - begin, sums);
  return true;
}

struct Disk {
  uint64_t free = UINT64_MAX;
  uint64_t left_free = 0;  ///< what is not to be used
};
Disk disk_of(const fs::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return {};
  return {uint64_t{status.f_bavail} * status.f_frsize,
          std::min(uint64_t{status.f_blocks} * status.f_frsize / 20, kMostLeftFree)};
}

}  // namespace

void PackedCache::store(const Digest& key, std::vector<kernels::PackedMatrix> matrices) {
  Job job{key, std::move(matrices), 0};
  for (const kernels::PackedMatrix& matrix : job.matrices) job.bytes += matrix.bytes();
  const std::lock_guard lock(mutex_);
  if (failed_ || stop_) return;
  queued_bytes_ += job.bytes;
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {
      // No thread to be had: finish() writes.
    }
  }
  changed_.notify_all();
}

Status PackedCache::store_now(const Digest& key, std::vector<kernels::PackedMatrix> matrices) {
  const Job job{key, std::move(matrices), 0};
  // The caller needs the file now: rather than wait for a process that writes the same one, and may
  // be stopped, it is written twice. The later rename wins.
  constexpr uint32_t kMostAttempts = 100;
  for (uint32_t attempt = 0; attempt < kMostAttempts; ++attempt) {
    const Written written = write_file(job, attempt);
    if (!written.problem.empty()) {
      return Error{ErrorKind::kIo, "can't keep quantized weights: " + written.problem};
    }
    if (!written.busy) return {};
  }
  return Error{ErrorKind::kIo, "can't keep quantized weights: " + path_of(key).string() +
                                   " is being written by too many processes"};
}

std::optional<PackedCache::Job> PackedCache::next() {
  const std::lock_guard lock(mutex_);
  if (jobs_.empty() || stop_) return std::nullopt;
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  ++under_way_;
  return job;
}

void PackedCache::done(const Job& job) {
  const std::lock_guard lock(mutex_);
  --under_way_;
  written_bytes_ += job.bytes;
  changed_.notify_all();
}

void PackedCache::work() {
  // Loading and answering come first. Failing costs speed only.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
  while (!stop_) {
    if (auto job = next()) {
      write(*job);
      done(*job);
      continue;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
  }
}

void PackedCache::finish(std::chrono::steady_clock::time_point deadline,
                         const std::atomic<bool>* cancel,
                         const std::function<void(uint64_t, uint64_t)>& progress) {
  hurry_ = true;
  const auto late = [&] {
    return (cancel != nullptr && *cancel) || std::chrono::steady_clock::now() >= deadline;
  };
  const auto report = [&] {
    uint64_t written = 0;
    uint64_t queued = 0;
    {
      const std::lock_guard lock(mutex_);
      written = written_bytes_;
      queued = queued_bytes_;
    }
    if (progress && written < queued) progress(written, queued);
  };
  report();
  // Beside the thread, which at its priority may not get on.
  while (!late()) {
    auto job = next();
    if (!job) break;
    write(*job);
    done(*job);
    report();
  }
  std::unique_lock lock(mutex_);
  while (under_way_ != 0 && !late()) changed_.wait_for(lock, std::chrono::milliseconds(50));
}

void PackedCache::write(const Job& job) {
  const std::string problem = write_file(job, 0).problem;
  if (problem.empty() || stop_) return;
  {
    const std::lock_guard lock(mutex_);
    for (const Job& left : jobs_) written_bytes_ += left.bytes;
    jobs_.clear();
    if (std::exchange(failed_, true)) return;
  }
  notice(problem + "; quantized weights are not kept");
}

PackedCache::Written PackedCache::write_file(const Job& job, uint32_t attempt) {
  const fs::path path = path_of(job.key);
  PackedHeader header;
  header.key = job.key;
  for (const kernels::PackedMatrix& matrix : job.matrices) {
    header.matrices.push_back({matrix.format, matrix.rows, matrix.columns});
  }
  std::error_code code;
  if (fs::exists(path, code)) return {};  // another process was faster
  const fs::path& folder = options_.folder;
  if (!fs::is_directory(folder, code)) {
    fs::create_directories(folder.parent_path(), code);
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return {system_text(folder, "make the folder", errno)};
    }
  }
  fs::path writing = path;
  if (attempt != 0) writing += "." + std::to_string(attempt);
  writing += kWriting;
  Temporary file;
  if (std::string problem = claim(header.file_bytes(), writing, file.descriptor);
      !problem.empty() || file.descriptor < 0) {
    const bool busy = problem.empty();
    return {std::move(problem), busy};
  }
  file.path = writing;
  if (std::string problem = fill(file.descriptor, header, job); !problem.empty()) {
    return {writing.string() + ": " + problem};
  }
  if (::rename(writing.c_str(), path.c_str()) != 0) return {system_text(path, "rename", errno)};
  file.path.clear();
  return {};
}

std::string PackedCache::claim(uint64_t bytes, const fs::path& path, int& claimed) {
  // One at a time, or two would take the same room.
  const FolderLock lock(options_.folder);
  if (!take_known_room(bytes)) {
    if (std::string problem = make_room(bytes, path); !problem.empty()) return problem;
  }
  const int file =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (file < 0) return system_text(path, "write", errno);
  // Whoever has the lock writes; a file without one was left by a process that was killed.
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 || !same_file(file, path)) {
    ::close(file);
    return {};
  }
  // All of the space or none: a disk that fills up half way helps nobody.
  const auto size = static_cast<off_t>(bytes);
  if (::fchmod(file, 0600) != 0 || ::ftruncate(file, 0) != 0 ||
      (::fallocate(file, 0, 0, size) != 0 &&
       (errno != EOPNOTSUPP || ::ftruncate(file, size) != 0))) {
    const int code = errno;
    ::unlink(path.c_str());
    ::close(file);
    return system_text(path, "write", code);
  }
  claimed = file;
  return {};
}

std::string PackedCache::fill(int file, const PackedHeader& header, const Job& job) {
  const auto failed = [](int code) { return std::generic_category().message(code); };
  const uint64_t size = header.file_bytes();
  const auto places = header.places();
  for (size_t i = 0; i < places.size(); ++i) {
    const kernels::PackedMatrix& matrix = job.matrices[i];
    const auto weights = std::as_bytes(std::span(matrix.data.data(), matrix.data.size()));
    const auto scales =
        std::as_bytes(std::span(matrix.row_scales.data(), matrix.row_scales.size()));
    if (weights.size() != places[i].weight_bytes || scales.size() != places[i].scale_bytes) {
      return "a matrix is not of the size of its shape";
    }
    if (!write_all(file, weights, places[i].weights, stop_) ||
        !write_all(file, scales, places[i].scales, stop_)) {
      return failed(errno);
    }
  }
  PackedHeader complete = header;
  if (!read_checksum(file, header.data_offset(), size, complete.content)) return failed(errno);
  if (!write_all(file, complete.serialize(), 0, stop_)) return failed(errno);
  // Without it a power failure may leave a file with holes; the next start would find out.
  if (!hurry_ && ::fdatasync(file) != 0) return failed(errno);
  return {};
}

bool PackedCache::take_known_room(uint64_t bytes) {
  const Disk disk = disk_of(options_.folder);
  const std::lock_guard lock(mutex_);
  if (bytes > known_room_ || disk.free < disk.left_free + bytes) return false;
  known_room_ -= bytes;
  return true;
}

std::string PackedCache::make_room(uint64_t bytes, const fs::path& own) {
  struct Entry {
    fs::path path;
    uint64_t bytes;
    fs::file_time_type used;
  };
  std::vector<Entry> entries;
  uint64_t total = 0;
  std::error_code code;
  for (fs::directory_iterator entry(options_.folder, code), end; !code && entry != end;
       entry.increment(code)) {
    if (entry->path().extension() == kWriting) {
      if (entry->path() == own) continue;
      remove_if_abandoned(entry->path());
      std::error_code gone;
      const uint64_t size = entry->file_size(gone);
      if (!gone) total += size;
      continue;
    }
    if (entry->path().extension() != ".packed") continue;
    std::error_code first;
    std::error_code second;
    Entry one{entry->path(), entry->file_size(first), entry->last_write_time(second)};
    if (first || second) continue;
    total += one.bytes;
    entries.push_back(std::move(one));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  Disk disk = disk_of(options_.folder);
  // What this process has used or made since it began would be missed at once.
  auto oldest = entries.begin();
  while (total + bytes > options_.limit || disk.free < disk.left_free + bytes) {
    if (oldest == entries.end() || oldest->used >= started_) {
      return options_.folder.string() + (total + bytes > options_.limit
                                             ? ": the cache's limit is too small for this model"
                                             : ": the disk is too full");
    }
    std::error_code ignored;
    if (fs::remove(oldest->path, ignored)) {
      total -= oldest->bytes;
      if (disk.free != UINT64_MAX) disk.free += oldest->bytes;
    }
    ++oldest;
  }
  // Others write here too: a quarter of what is left, so that four of them keep the limit.
  const std::lock_guard lock(mutex_);
  known_room_ = (options_.limit - total - bytes) / 4;
  return {};
}

}  // namespace tandem::weights
