// Which hosts may use this device now: those whose jobs it holds a lease of.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "wire/tls.h"

namespace tandem::room {

using Clock = std::chrono::steady_clock;

/// One job that this device works at.
struct Grant {
  std::string job;
  std::string kind;  ///< "probe" or "stage"
  int64_t token = 0;
  wire::Fingerprint host{};  ///< certificate of the device that submitted it
  Clock::time_point granted;
  Clock::time_point renewed;  ///< when the hub last confirmed the lease
  Clock::time_point served;   ///< when the host was last connected; `granted` before it came
};

/// Thread-safe.
class Grants {
 public:
  void add(Grant grant);
  void remove(const std::string& job);
  void renewed(const std::string& job);
  /// Takes note of who is connected.
  void serve(const std::vector<wire::Fingerprint>& hosts);
  [[nodiscard]] std::vector<Grant> all() const;
  /// No work is taken while `why` is not empty; hosts that are connected already stay.
  void pause(const std::string& why);
  /// Whether a host may connect. The error says why not.
  [[nodiscard]] Status admit(const wire::Fingerprint& host) const;

 private:
  mutable std::mutex mutex_;  ///< guards what follows
  std::map<std::string, Grant> grants_;
  std::string why_;
};

}  // namespace tandem::room
