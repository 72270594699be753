#include "cli/observe.h"

#include "cli/output.h"
#if defined(TANDEM_HUB)
#include "observe/server/metrics_server.h"
#endif

namespace tandem::cli {

void ObserveFlags::add(Flags& flags, bool with_metrics) {
  if (with_metrics) {
    flags.add("--metrics", "HOST:PORT", metrics,
              "serve numbers for Prometheus at /metrics; a PORT alone is on 127.0.0.1");
  }
  flags.add("--log", "FILE", log,
            "append what happens, one JSON object a line; - is standard error");
}

Result<observe::EventLog> ObserveFlags::open_log() const {
  if (log.empty()) return observe::EventLog();
  return observe::EventLog::open(log);
}

Result<std::shared_ptr<observe::MetricsServer>> ObserveFlags::serve(
    [[maybe_unused]] std::function<std::string()> text) const {
  std::shared_ptr<observe::MetricsServer> shared;
  if (metrics.empty()) return shared;
#if defined(TANDEM_HUB)
  TANDEM_ASSIGN(auto server, observe::MetricsServer::start(metrics, std::move(text)));
  shared = std::move(server);
  note("metrics at http://" + shared->address() + "/metrics\n");
  return shared;
#else
  return unsupported("this build has no metrics (TANDEM_HUB=OFF)");
#endif
}

}  // namespace tandem::cli
