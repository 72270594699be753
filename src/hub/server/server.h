// The hub's HTTPS server: connections, limits of time and number, relayed streams. What requests
// mean is the App's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "hub/server/http.h"

namespace tandem::hub {

class Signals;

/// What the server asks of the hub. Any thread.
class App {
 public:
  virtual ~App() = default;
  /// True if handle() takes microseconds and waits for nothing.
  [[nodiscard]] virtual bool is_quick(const Request& request) const = 0;
  /// How long the request's body may be.
  [[nodiscard]] virtual uint64_t body_limit(const Request& request) const = 0;
  virtual Response handle(const Request& request) = 0;
  /// Asked before a long body is read: whether the request's header alone says who it is from. Any
  /// other is refused then. May wait for the store.
  virtual bool knows(const Request& request) = 0;
  /// For a request to be relayed (`upgrade` is "tandem-relay"): 101 with the name of the pair in
  /// `body`, the same for both ends, or why not.
  virtual Response relay(const Request& request) = 0;
};

struct ServerOptions {
  std::string listen;  ///< "HOST:PORT"
  std::string certificate_pem;
  std::string key_pem;
  unsigned io_threads = 2;
  unsigned workers = 2;  ///< threads that run handlers which are not quick
  size_t connections = 16384;
  size_t connections_per_address = 1024;
  size_t waits_per_caller = 8;       ///< requests of one device that wait at a time
  uint64_t body_memory = 256 << 20;  ///< bytes of long bodies, of all requests and answers together
};

/// Counted since the start. Any thread.
struct ServerFigures {
  std::atomic<uint64_t> connections_now{0};
  std::atomic<uint64_t> connections_all{0};
  std::atomic<uint64_t> connections_refused{0};
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> failures_4xx{0};
  std::atomic<uint64_t> failures_5xx{0};
  std::atomic<uint64_t> relays_now{0};
  std::atomic<uint64_t> relay_bytes{0};
  std::atomic<uint64_t> request_us{0};  ///< sum over all that did not wait
};

class Server {
 public:
  /// Listens and starts its threads. `app` and `signals` outlive it. Errors: kIo (the address),
  /// kNotFound (its name), kInvalid (certificate).
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options, App& app,
                                               Signals& signals);
  /// Closes all connections and joins the threads.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] const std::string& host() const;
  [[nodiscard]] uint16_t port() const;
  [[nodiscard]] const ServerFigures& figures() const;

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tandem::hub
