// --metrics and --log of the commands that run for a while.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/flags.h"
#include "observe/event_log.h"

namespace tandem::observe {
class MetricsServer;
}

namespace tandem::cli {

struct ObserveFlags {
  std::string metrics;  ///< HOST:PORT or PORT; empty: none
  std::string log;      ///< a file or "-"; empty: none

  /// --log, and --metrics with it unless the command serves its metrics itself.
  void add(Flags& flags, bool with_metrics = true);
  /// The event log, which writes nothing if none was asked for. Error: kIo.
  [[nodiscard]] Result<observe::EventLog> open_log() const;
  /// Serves `text` at /metrics, if that was asked for: null if not. Says where on standard error.
  /// Errors: kInvalid, kIo, kUnsupported (built without).
  [[nodiscard]] Result<std::shared_ptr<observe::MetricsServer>> serve(
      std::function<std::string()> text) const;
};

}  // namespace tandem::cli
