#include "ring/local.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "ring/worker.h"

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

/// Reads the child's standard output up to the line that says where it listens.
Result<std::string> read_address(int fd, wire::Clock::time_point deadline) {
  const std::string prefix = listening_line("");
  std::string output;
  std::array<char, 512> buffer;
  for (;;) {
    if (!wire::wait_for(fd, false, deadline)) {
      return Error{ErrorKind::kPeer, "a local worker did not say where it listens"};
    }
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error{ErrorKind::kPeer, "a local worker ended before it listened"};
    output.append(buffer.data(), static_cast<size_t>(got));
    const auto start = output.find(prefix);
    if (start == std::string::npos) {
      if (output.size() > 65536) {
        return Error{ErrorKind::kPeer, "a local worker said something else than where it listens"};
      }
      continue;
    }
    const auto end = output.find('\n', start);
    if (end != std::string::npos) {
      return output.substr(start + prefix.size(), end - start - prefix.size());
    }
  }
}

}  // namespace

Status LocalWorkers::spawn(const std::string& executable,
                           const std::vector<std::string>& arguments) {
  std::array<int, 2> pipe{};
  std::array<int, 2> failure{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return Error{ErrorKind::kIo, "can't make a pipe"};
  outputs_.emplace_back(pipe[0]);
  const wire::Socket write_end(pipe[1]);
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) return Error{ErrorKind::kIo, "can't make a pipe"};
  const wire::Socket failure_read(failure[0]);
  wire::Socket failure_write(failure[1]);
  // Everything that allocates comes before the fork: after it, only what a signal handler may call.
  std::vector<char*> argv{const_cast<char*>(executable.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return Error{ErrorKind::kIo, "can't start a process"};
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before prctl()
    ::dup2(pipe[1], STDOUT_FILENO);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execv(argv[0], argv.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t told = ::write(failure[1], &error, sizeof error);
    ::_exit(127);
  }
  processes_.push_back(child);
  failure_write = {};
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(failure_read.fd(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    return Error{ErrorKind::kNotFound, "can't run " + executable + ": " + std::strerror(error)};
  }
  return {};
}

Result<std::unique_ptr<LocalWorkers>> LocalWorkers::start(
    uint32_t count, const std::string& executable, const std::vector<std::string>& arguments) {
  std::unique_ptr<LocalWorkers> workers(new LocalWorkers);
  for (uint32_t i = 0; i < count; ++i) TANDEM_TRY(workers->spawn(executable, arguments));
  const auto deadline = wire::Clock::now() + 20s;
  for (const wire::Socket& output : workers->outputs_) {
    TANDEM_ASSIGN(std::string address, read_address(output.fd(), deadline));
    workers->addresses_.push_back(std::move(address));
  }
  return workers;
}

LocalWorkers::~LocalWorkers() {
  for (const pid_t process : processes_) ::kill(process, SIGTERM);
  const auto deadline = wire::Clock::now() + 1s;
  for (const pid_t process : processes_) {
    int status = 0;
    while (::waitpid(process, &status, WNOHANG) == 0) {
      if (wire::Clock::now() >= deadline) {
        ::kill(process, SIGKILL);
        ::waitpid(process, &status, 0);
        break;
      }
      std::this_thread::sleep_for(5ms);
    }
  }
}

}  // namespace tandem::ring
