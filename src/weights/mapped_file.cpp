#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace tandem::weights {

namespace {

Error system_error(const std::string& path, const char* action, int code) {
  return {code == ENOENT || code == ENOTDIR ? ErrorKind::kNotFound : ErrorKind::kIo,
          path + ": can't " + action + ": " + std::generic_category().message(code)};
}

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// A descriptor of a regular file and what fstat says of it.
Result<int> open_regular(const std::filesystem::path& path, struct stat& status) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer before it can be refused.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return system_error(path, "open", errno);
  if (::fstat(descriptor, &status) != 0) {
    const int code = errno;
    ::close(descriptor);
    return system_error(path, "stat", code);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    return invalid(path.string() + ": expected a regular file, found a " +
                   (S_ISDIR(status.st_mode) ? "folder" : "device or pipe"));
  }
  return descriptor;
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::filesystem::path& path,
                                                           bool growing) {
  struct stat status {};
  TANDEM_ASSIGN(const int descriptor, open_regular(path, status));
  // No make_shared: the constructor is private.
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->descriptor_ = descriptor;
  file->growing_ = growing;
  std::error_code code;
  const auto real = std::filesystem::canonical(path, code);
  if (code) return system_error(path, "resolve", code.value());
  file->identity_ = {real.string(), static_cast<uint64_t>(status.st_size),
                     nanoseconds(status.st_mtim), nanoseconds(status.st_ctim), status.st_ino};
  if (status.st_size == 0) return std::shared_ptr<const MappedFile>(file);  // nothing to map
  void* address =
      ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) return system_error(path, "map", errno);
  file->bytes_ = {static_cast<const std::byte*>(address), static_cast<size_t>(status.st_size)};
  return std::shared_ptr<const MappedFile>(file);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status MappedFile::check_unchanged() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return system_error(identity_.path, "stat", errno);
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size != identity_.size) {
    return invalid(identity_.path + ": changed while open: had " + std::to_string(identity_.size) +
                   " bytes, now has " + std::to_string(size));
  }
  if (!growing_ && nanoseconds(status.st_mtim) != identity_.modified_ns) {
    return invalid(identity_.path + ": changed while open: it was written to");
  }
  return {};
}

Status MappedFile::read_at(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(identity_.path, "read", errno);
    if (count == 0) {
      return invalid(identity_.path + ": expected " + std::to_string(bytes.size()) +
                     " more bytes at offset " + std::to_string(offset) + ", found the end");
    }
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

namespace {

void advise(std::span<const std::byte> mapping, uint64_t offset, uint64_t length, int advice) {
  if (offset >= mapping.size() || length == 0) return;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;
  const uint64_t end = std::min<uint64_t>(mapping.size(), offset + length);
  // Advice only: if the system refuses, the bytes are the same and merely come or go later.
  (void)::madvise(const_cast<std::byte*>(mapping.data()) + begin, end - begin, advice);
}

}  // namespace

void MappedFile::will_need(uint64_t offset, uint64_t length) const {
  advise(bytes_, offset, length, MADV_WILLNEED);
}

void MappedFile::release(uint64_t offset, uint64_t length) const {
  advise(bytes_, offset, length, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::filesystem::path& path, uint64_t limit) {
  struct stat status {};
  TANDEM_ASSIGN(const int descriptor, open_regular(path, status));
  std::string text;
  int code = 0;
  // One byte beyond the limit is enough to see that the file is too long, even if it grows.
  while (text.size() <= limit) {
    const size_t old_size = text.size();
    const size_t room = static_cast<size_t>(std::min<uint64_t>(limit + 1 - old_size, 65536));
    text.resize(old_size + room);
    const ssize_t count = ::read(descriptor, text.data() + old_size, room);
    code = count < 0 ? errno : 0;
    text.resize(old_size + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count < 0 && code == EINTR) continue;
    if (count <= 0) break;
  }
  ::close(descriptor);
  if (code != 0) return system_error(path, "read", code);
  if (text.size() > limit) {
    return invalid(path.string() + ": expected at most " + std::to_string(limit) +
                   " bytes, found more");
  }
  return text;
}

}  // namespace tandem::weights
