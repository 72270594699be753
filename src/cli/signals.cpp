#include "cli/signals.h"

#include <poll.h>
#include <signal.h>

#include "cli/output.h"

namespace tandem::cli {

void wait_for_signal() {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  sigaddset(&blocked, SIGTERM);
  // Blocked while the flag is looked at, so that no signal comes between the look and the sleep.
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  sigdelset(&before, SIGINT);
  sigdelset(&before, SIGTERM);
  while (!cancel_flag()) ::ppoll(nullptr, 0, nullptr, &before);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace tandem::cli
