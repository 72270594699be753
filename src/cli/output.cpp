#include "cli/output.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/flags.h"

namespace tandem::cli {
namespace {

std::atomic<bool> cancel{false};
std::atomic<bool> closed{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

extern "C" void on_signal(int signal) {
  if (cancel.exchange(true)) {
    // Asked twice: whatever is under way is not stopping by itself.
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

bool colours() {
  static const bool yes = [] {
    const char* no_color = std::getenv("NO_COLOR");
    const char* term = std::getenv("TERM");
    return on_terminal() && (no_color == nullptr || *no_color == 0) &&
           (term == nullptr || std::string_view(term) != "dumb");
  }();
  return yes;
}

size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::atomic<bool>& cancel_flag() {
  return cancel;
}
void clear_cancel() {
  cancel = false;
}

void install_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a read from the keyboard must end
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

bool write_out(std::string_view text) {
  if (closed) return false;
  if (write_all(STDOUT_FILENO, text)) return true;
  closed = true;
  cancel = true;
  return false;
}

bool output_closed() {
  return closed;
}

void note(std::string_view text) {
  (void)write_all(STDERR_FILENO, text);
}

bool on_terminal() {
  static const bool yes = ::isatty(STDERR_FILENO) == 1;
  return yes;
}

std::string styled(Style style, std::string_view text) {
  if (!colours()) return std::string(text);
  const char* code = style == Style::kBold  ? "1"
                     : style == Style::kDim ? "2"
                     : style == Style::kRed ? "31"
                                            : "32";
  return std::string("\033[") + code + "m" + std::string(text) + "\033[0m";
}

std::string number(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return number(value, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

std::string table(const std::vector<std::vector<std::string>>& rows,
                  const std::vector<bool>& right) {
  std::vector<size_t> width(right.size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(width[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += right[i] ? space + row[i] : row[i] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += (&row == &rows.front() ? styled(Style::kDim, line) : line) + "\n";
  }
  return text;
}

void ProgressLine::show(std::string_view text, uint64_t done, uint64_t total) {
  if (!on_terminal()) return;
  const auto now = std::chrono::steady_clock::now();
  if (visible_ && now - last_ < std::chrono::milliseconds(50)) return;
  last_ = now;
  visible_ = true;
  constexpr size_t kBar = 20;
  const double share =
      total == 0 ? 0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto full = static_cast<size_t>(share * kBar);
  std::string line = "[" + std::string(full, '#') + std::string(kBar - full, '.') + "] " +
                     number(100 * share, 0) + " % " + std::string(text);
  line.resize(std::min(line.size(), terminal_width() - 1));
  note("\r\033[K" + line);
}

void ProgressLine::clear() {
  if (visible_) note("\r\033[K");
  visible_ = false;
}

int fail(std::string_view command, const Error& error, bool json, const std::string& events) {
  if (output_closed()) return kSuccess;
  if (json) {
    nlohmann::ordered_json object;
    object["error"]["kind"] = std::string(name(error.kind));
    object["error"]["message"] = error.message;
    if (!events.empty()) object["events"] = nlohmann::ordered_json::parse(events, nullptr, false);
    write_out(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    note("tandem " + std::string(command) + ": " + styled(Style::kRed, error.message) + "\n");
  }
  return error.kind == ErrorKind::kCancelled ? kInterrupted : kFailure;
}

Result<std::string> read_input(uint64_t limit) {
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) {
      if (cancel) return Error{ErrorKind::kCancelled, "stopped"};
      continue;
    }
    if (count < 0) {
      return Error{ErrorKind::kIo,
                   std::string("can't read standard input: ") + std::strerror(errno)};
    }
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > limit) {
      return invalid("standard input holds more than " + bytes_text(limit));
    }
  }
}

}  // namespace tandem::cli
