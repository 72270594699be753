// Token buckets: how often somebody may do something.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

namespace tandem::hub {

/// What limits of an address count by: an IPv4 address itself, of IPv6 the first 64 bits, which one
/// subscriber has to give out as it likes. Other texts stay as they are.
std::string network_of(const std::string& address);

/// One bucket for each key and one for all keys together. Thread-safe; at most 65,536 keys are
/// remembered, and full buckets are forgotten first.
class Limiter {
 public:
  /// `per_minute` refill of each key's bucket, which holds `burst`; and the same for all.
  Limiter(double per_minute, double burst, double all_per_minute, double all_burst)
      : each_{per_minute / 60, burst}, all_{all_per_minute / 60, all_burst} {}

  /// Seconds until `key` may go on (rounded up), 0 if it may now. Takes nothing.
  int64_t wait(const std::string& key);
  /// Counts one.
  void count(const std::string& key);
  /// Counts one if it is allowed: 0; else the seconds until it is.
  int64_t take(const std::string& key);

 private:
  struct Rate {
    double per_second;
    double burst;
  };
  struct Bucket {
    double level = -1;  ///< -1: full
    std::chrono::steady_clock::time_point last;
  };
  static void refill(Bucket& bucket, const Rate& rate, std::chrono::steady_clock::time_point now);
  void prune(std::chrono::steady_clock::time_point now);
  int64_t wait_locked(const std::string& key, std::chrono::steady_clock::time_point now);
  void count_locked(const std::string& key, std::chrono::steady_clock::time_point now);

  const Rate each_;
  const Rate all_;
  std::mutex mutex_;  ///< guards what follows
  std::unordered_map<std::string, Bucket> buckets_;
  Bucket total_;
};

}  // namespace tandem::hub
