// Serves /metrics and /health of one process over plain HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace tandem::observe {

/// Numbers only, no encryption: for this machine or a network that one trusts. At most 16
/// connections; one that sends nothing for 5 s is closed.
class MetricsServer {
 public:
  /// Listens on "HOST:PORT", or on 127.0.0.1 if only "PORT" is given (0 chooses one), and starts a
  /// thread. `text` is called by it for each request of /metrics. Errors: kInvalid, kIo.
  static Result<std::unique_ptr<MetricsServer>> start(const std::string& listen,
                                                      std::function<std::string()> text);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  /// "127.0.0.1:9100", with the port that was chosen.
  [[nodiscard]] std::string address() const;

 private:
  struct State;
  explicit MetricsServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tandem::observe
