// Runs the real `tandem` executable.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace tandem::cli_test {

struct Output {
  int code = -1;    ///< exit code, or 128 + the signal that ended it
  std::string out;  ///< standard output
  std::string err;  ///< standard error
};

/// A child process with pipes to its three standard streams. Ended when the object goes.
class Process {
 public:
  /// `program`: another than the executable.
  explicit Process(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {},
                   const std::string& program = TANDEM_BINARY_DIR "/tandem");
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void write(const std::string& text) const;
  void close_input();
  void close_output();
  void signal(int number) const;
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Reads standard output (or error) until it contains `text`; what was read so far. Fails the
  /// test after a minute or at the end of the stream.
  std::string read_until(const std::string& text);
  std::string read_error_until(const std::string& text);
  /// The next whole line of standard output, without its end. Fails as read_until() does.
  std::string read_line();
  /// Closes standard input, reads everything and waits for the end.
  Output finish();

 private:
  std::string read_until(int fd, std::string& read, const std::string& text, size_t from = 0) const;
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::string out_read_;
  std::string err_read_;
  size_t lines_end_ = 0;  ///< of out_read_: what read_line() gave
};

/// tandem ARGUMENTS < input.
Output tandem(const std::vector<std::string>& arguments, const std::string& input = "");
/// The same, and the test fails unless it succeeds.
std::string tandem_ok(const std::vector<std::string>& arguments, const std::string& input = "");

/// A `tandem worker` on a port that the system chose.
class WorkerProcess {
 public:
  explicit WorkerProcess(std::vector<std::string> flags = {});
  [[nodiscard]] const std::string& address() const { return address_; }
  Process& process() { return process_; }

 private:
  Process process_;
  std::string address_;
};

std::string read_file(const std::string& path);
/// A path under the source tree.
std::string source(const std::string& path);
/// A fresh path in the tests' temporary folder.
std::string temporary(const std::string& name);

}  // namespace tandem::cli_test
