#include "cli/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>

namespace tandem::cli_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kPatience = 240s;  // far more than anything here takes, sanitizers or not

/// Appends what the descriptor has to give; false at its end.
bool read_some(int fd, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(fd, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
  return count > 0 || (count < 0 && errno == EINTR);
}

void close_descriptor(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment, const std::string& program) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  EXPECT_EQ(::pipe2(in.data(), O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(err.data(), O_CLOEXEC), 0);
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  argv.reserve(arguments.size() + 2);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  envp.reserve(environment.size() + 2);
  for (const std::string& one : environment) envp.push_back(const_cast<char*>(one.c_str()));
  // The tests' own weights are quantized each time, unless a test is about the cache.
  std::string no_cache = "TANDEM_CACHE=off";
  envp.push_back(no_cache.data());
  for (char** one = environ; *one != nullptr; ++one) envp.push_back(*one);
  envp.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    ::signal(SIGPIPE, SIG_DFL);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  in_ = in[1];
  out_ = out[0];
  err_ = err[0];
  ::signal(SIGPIPE, SIG_IGN);
}

Process::~Process() {
  close_descriptor(in_);
  close_descriptor(out_);
  close_descriptor(err_);
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void Process::write(const std::string& text) const {
  EXPECT_EQ(::write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void Process::close_input() {
  close_descriptor(in_);
}
void Process::close_output() {
  close_descriptor(out_);
}
void Process::signal(int number) const {
  ::kill(pid_, number);
}

std::string Process::read_until(int fd, std::string& read, const std::string& text,
                                size_t from) const {
  const auto deadline = Clock::now() + kPatience;
  while (read.find(text, from) == std::string::npos) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, 1000) > 0 && !read_some(fd, read)) {
      ADD_FAILURE() << "the stream ended without '" << text << "': " << read;
      break;
    }
    if (Clock::now() > deadline) {
      ADD_FAILURE() << "waited in vain for '" << text << "': " << read;
      break;
    }
  }
  return read;
}

std::string Process::read_until(const std::string& text) {
  return read_until(out_, out_read_, text);
}

std::string Process::read_error_until(const std::string& text) {
  return read_until(err_, err_read_, text);
}

std::string Process::read_line() {
  read_until(out_, out_read_, "\n", lines_end_);
  const size_t begin = lines_end_;
  const size_t end = std::min(out_read_.find('\n', begin), out_read_.size());
  lines_end_ = std::min(end + 1, out_read_.size());
  return out_read_.substr(begin, end - begin);
}

Output Process::finish() {
  close_input();
  Output output;
  const auto deadline = Clock::now() + kPatience;
  std::array<pollfd, 2> entries{{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    ::poll(entries.data(), entries.size(), 1000);
    if (entries[0].fd >= 0 && entries[0].revents != 0 && !read_some(out_, out_read_)) {
      entries[0].fd = -1;
    }
    if (entries[1].fd >= 0 && entries[1].revents != 0 && !read_some(err_, err_read_)) {
      entries[1].fd = -1;
    }
    if (Clock::now() > deadline) {
      ADD_FAILURE() << "the process does not end";
      ::kill(pid_, SIGKILL);
      break;
    }
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  output.out = std::move(out_read_);
  output.err = std::move(err_read_);
  return output;
}

Output tandem(const std::vector<std::string>& arguments, const std::string& input) {
  Process process(arguments);
  if (!input.empty()) process.write(input);
  return process.finish();
}

std::string tandem_ok(const std::vector<std::string>& arguments, const std::string& input) {
  const Output output = tandem(arguments, input);
  std::string line = "tandem";
  for (const std::string& argument : arguments) line += " " + argument;
  EXPECT_EQ(output.code, 0) << line << "\n" << output.err << output.out;
  return output.out;
}

WorkerProcess::WorkerProcess(std::vector<std::string> flags)
    : process_([&] {
        std::vector<std::string> arguments{"worker", "--listen", "127.0.0.1:0"};
        arguments.insert(arguments.end(), flags.begin(), flags.end());
        return arguments;
      }()) {
  std::string line = process_.read_until("\n");
  line.erase(line.find_last_not_of('\n') + 1);
  address_ = line.substr(line.rfind(' ') + 1);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string source(const std::string& path) {
  return std::string(TANDEM_SOURCE_DIR) + "/" + path;
}

std::string temporary(const std::string& name) {
  return testing::TempDir() + "tandem-" + std::to_string(::getpid()) + "-" + name;
}

}  // namespace tandem::cli_test
