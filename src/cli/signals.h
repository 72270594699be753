// Commands that run until they are told to end.
#pragma once

#include <signal.h>

#include <chrono>

namespace tandem::cli {

/// Keeps the signals that ask to end, SIGINT and SIGTERM, for one sleep of the thread that makes
/// this. It is made before any other thread: they inherit the mask, so that no handler runs on one
/// of them, which would set the flag without waking the sleeper. For one thread.
class EndSignals {
 public:
  EndSignals();
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  /// Sleeps until one has come, also one that came before. From then on another one comes through:
  /// it ends a process that doesn't stop by itself.
  void wait();
  /// The same, for so long at most. Another signal does not come through yet.
  void wait(std::chrono::milliseconds time) const;

 private:
  sigset_t before_{};
};

}  // namespace tandem::cli
