// Worker processes on this machine, started and ended by this one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "wire/tcp.h"

namespace tandem::ring {

/// Child processes that end when this object or the thread that started them does, however this
/// process ends. So start them from a thread that lives as long as they are needed.
class LocalWorkers {
 public:
  /// Starts `count` times `executable` with `arguments` (without the program's name; they must make
  /// it a worker that listens on port 0 and prints listening_line()), and waits up to 20 s for the
  /// lines. Errors: kNotFound (no such program), kIo, kPeer (a child ended or said nothing).
  static Result<std::unique_ptr<LocalWorkers>> start(uint32_t count, const std::string& executable,
                                                     const std::vector<std::string>& arguments);
  /// Ends the children with SIGTERM, and after a second with SIGKILL.
  ~LocalWorkers();
  LocalWorkers(const LocalWorkers&) = delete;
  LocalWorkers& operator=(const LocalWorkers&) = delete;

  /// HOST:PORT of each.
  [[nodiscard]] const std::vector<std::string>& addresses() const { return addresses_; }
  [[nodiscard]] const std::vector<pid_t>& processes() const { return processes_; }

 private:
  LocalWorkers() = default;
  Status spawn(const std::string& executable, const std::vector<std::string>& arguments);
  std::vector<pid_t> processes_;
  std::vector<std::string> addresses_;
  std::vector<wire::Socket> outputs_;  ///< the children's standard outputs
};

}  // namespace tandem::ring
