// Which folder, and so which device, a worker is. Several workers on one machine are several
// devices, and none of them is the device that asks for answers: its folder is the home itself.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"

namespace tandem::room {

/// A device's folder, held by this process alone for as long as the object lives.
class DeviceFolder {
 public:
  /// The folder devices/NAME below `home`; without a name that of the machine's, or, where a worker
  /// runs already, the first free one of MACHINE-2, -3, ….
  /// Errors: kInvalid (not a name, or a worker of that name runs), kIo, kMemory (64 run).
  static Result<DeviceFolder> take(const std::filesystem::path& home, const std::string& name,
                                   const std::string& machine);
  /// Where the worker of that name, or the first one, has its folder.
  static std::filesystem::path of(const std::filesystem::path& home, const std::string& name,
                                  const std::string& machine);
  DeviceFolder(DeviceFolder&& other) noexcept;
  DeviceFolder& operator=(DeviceFolder&&) = delete;
  DeviceFolder(const DeviceFolder&) = delete;
  DeviceFolder& operator=(const DeviceFolder&) = delete;
  ~DeviceFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// What the device is called.
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  DeviceFolder(std::filesystem::path path, std::string name, int fd)
      : path_(std::move(path)), name_(std::move(name)), fd_(fd) {}
  std::filesystem::path path_;
  std::string name_;
  int fd_ = -1;
};

}  // namespace tandem::room
