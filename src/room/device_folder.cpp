#include "room/device_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "hub/identity.h"

namespace tandem::room {
namespace {

constexpr size_t kMostName = 64;
constexpr int kMostWorkers = 64;

bool is_name(const std::string& name) {
  const bool good = std::all_of(name.begin(), name.end(),
                                [](unsigned char c) { return c > 32 && c != '/' && c != 127; });
  return good && !name.empty() && name.size() <= kMostName && name.front() != '.';
}

std::string usual_name(const std::string& machine) {
  return is_name(machine) ? machine : "computer";
}

/// The lock's descriptor; -1 if another process has it.
Result<int> lock(const std::filesystem::path& folder) {
  TANDEM_TRY(hub::make_private_folder(folder));
  const auto path = folder / "worker.lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Error{ErrorKind::kIo, path.string() + ": " + std::strerror(errno)};
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int why = errno;
  ::close(fd);
  if (why == EWOULDBLOCK) return -1;
  return Error{ErrorKind::kIo, path.string() + ": " + std::strerror(why)};
}

}  // namespace

Result<DeviceFolder> DeviceFolder::take(const std::filesystem::path& home, const std::string& name,
                                        const std::string& machine) {
  if (!name.empty() && !is_name(name)) {
    return invalid("the name '" + name +
                   "' has to have 1 to 64 bytes, no space and no '/', and not begin with '.'");
  }
  const std::filesystem::path devices = home / "devices";
  TANDEM_TRY(hub::make_private_folder(home));
  TANDEM_TRY(hub::make_private_folder(devices));
  const std::string base = name.empty() ? usual_name(machine) : name;
  for (int i = 1; i <= kMostWorkers; ++i) {
    const std::string numbered =
        i == 1 ? base : base.substr(0, kMostName - 3) + "-" + std::to_string(i);
    TANDEM_ASSIGN(const int fd, lock(devices / numbered));
    if (fd >= 0) return DeviceFolder(devices / numbered, numbered, fd);
    if (!name.empty()) {
      return invalid("a worker called " + name + " runs here already");
    }
  }
  return Error{ErrorKind::kMemory, "64 workers run here already"};
}

std::filesystem::path DeviceFolder::of(const std::filesystem::path& home, const std::string& name,
                                       const std::string& machine) {
  return home / "devices" / (name.empty() ? usual_name(machine) : name);
}

DeviceFolder::DeviceFolder(DeviceFolder&& other) noexcept
    : path_(std::move(other.path_)),
      name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)) {}

DeviceFolder::~DeviceFolder() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace tandem::room
