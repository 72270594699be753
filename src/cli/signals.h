// Commands that run until they are told to end.
#pragma once

namespace tandem::cli {

/// Sleeps until a signal asks to end.
void wait_for_signal();

}  // namespace tandem::cli
