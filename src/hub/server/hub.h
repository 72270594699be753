// `tandem hub`: the meeting point of rooms and devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "hub/link.h"
#include "observe/event_log.h"

namespace tandem::hub {

struct HubOptions {
  std::string listen = "127.0.0.1:7443";
  std::filesystem::path data;    ///< folder of the store and the hub's own certificate
  std::string store;             ///< empty: SQLite in `data`; "postgresql://…"
  std::string tls = "self";      ///< or "CERT,KEY": two PEM files
  std::filesystem::path models;  ///< folder of models that it serves; empty: none
  bool mdns = false;             ///< answer those who look for a hub on the local network
  std::function<void(const std::string&)> log;  ///< one line each; may be empty
  observe::EventLog events;                     ///< told what happens

  // Limits; the defaults are for the open network.
  size_t connections = 16384;
  size_t connections_per_address = 1024;
  double guesses_per_minute = 10;        ///< wrong codes and proofs of one address
  double all_guesses_per_minute = 300;   ///< and of all
  double registrations_per_minute = 60;  ///< devices, organizations, challenges of one address
  double requests_per_second = 50;       ///< of one device, 200 at once
  double strangers_per_second = 50;  ///< requests without a good token of one address, 200 at once
  uint64_t body_memory = 256 << 20;  ///< bytes of bodies over 64 KiB, of all requests and answers
  int64_t flush_ms = 10000;          ///< heartbeats reach the store at least so often
  int64_t lease_ms = 30000;          ///< a job's lease, from each renewal
};

class Hub {
 public:
  /// Opens the store and listens. Errors: kIo, kInvalid, kNotFound, kUnsupported.
  static Result<std::unique_ptr<Hub>> start(HubOptions options);
  /// Writes what is in memory only, closes all connections.
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  /// How to reach it, with the fingerprint if its certificate is its own. Listening on all
  /// addresses it names the machine's first one that others can reach.
  [[nodiscard]] HubAddress address() const;
  /// "SQLite" or "PostgreSQL".
  [[nodiscard]] const char* store_name() const;

 private:
  struct State;
  explicit Hub(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tandem::hub
