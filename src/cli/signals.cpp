#include "cli/signals.h"

#include <poll.h>

#include "cli/output.h"

namespace tandem::cli {

EndSignals::EndSignals() {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  sigdelset(&before_, SIGINT);
  sigdelset(&before_, SIGTERM);
}

EndSignals::~EndSignals() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);  // ended without waiting
}

void EndSignals::wait(std::chrono::milliseconds time) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec limit{seconds.count(), static_cast<long>((time - seconds).count()) * 1000000};
  if (!cancel_flag()) ::ppoll(nullptr, 0, &limit, &before_);
}

void EndSignals::wait() {
  while (!cancel_flag()) ::ppoll(nullptr, 0, nullptr, &before_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace tandem::cli
