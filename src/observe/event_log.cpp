#include "observe/event_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>

namespace tandem::observe {
namespace {

constexpr size_t kMaxText = 400;

std::string now_text() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const auto seconds = static_cast<time_t>(ms / 1000);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 40> text{};
  const size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text.data() + length, text.size() - length, ".%03dZ", static_cast<int>(ms % 1000));
  return text.data();
}

}  // namespace

struct EventLog::File {
  explicit File(int descriptor) : fd(descriptor) {}
  ~File() {
    if (fd != STDERR_FILENO) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const int fd;
  std::mutex mutex;  ///< one line at a time
};

Result<EventLog> EventLog::open(const std::string& file) {
  const int fd = file == "-"
                     ? STDERR_FILENO
                     : ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return Error{ErrorKind::kIo, file + ": " + std::strerror(errno)};
  EventLog log;
  log.file_ = std::make_shared<File>(fd);
  return log;
}

void EventLog::write(std::string_view kind, std::string_view peer,
                     std::initializer_list<Field> fields) const {
  if (file_ == nullptr) return;
  nlohmann::ordered_json line{{"time", now_text()}, {"kind", kind}};
  if (!peer.empty()) line["peer"] = peer.substr(0, kMaxText);
  for (const auto& [name, value] : fields) {
    auto& field = line[std::string(name)];
    if (const auto* text = std::get_if<std::string_view>(&value)) {
      field = text->substr(0, kMaxText);
    } else if (const auto* number = std::get_if<int64_t>(&value)) {
      field = *number;
    } else {
      field = std::get<double>(value);
    }
  }
  // Names and messages come from others and may not be UTF-8.
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(file_->mutex);
  // A log that can't be written stops nothing.
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file_->fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    done += static_cast<size_t>(count);
  }
}

}  // namespace tandem::observe
