// Ranges of tensors for other devices: what a worker has on its disk, another one of its room may
// load from (docs/fetching.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>

#include "base/result.h"
#include "ring/tasks.h"
#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::ring {

struct ShareOptions {
  /// Fills `out` with the range asked for, of `out.size()` bytes. Any thread, may read a disk.
  /// Errors: kNotFound (not here). Empty: nothing is shared.
  std::function<Status(const wire::NeedRange&, std::span<std::byte> out)> give;
  /// Whether the device with this certificate may fetch from here; the error is told to it. Asked
  /// for each range, since devices are sent away and owners pause. Any thread, may wait some
  /// seconds. Empty: who proves the key may.
  std::function<Status(const wire::Fingerprint&)> admit;
  uint64_t bytes_per_second = 0;  ///< to all of them together; 0: no limit
};

/// Serves connections of Role::kSource, one thread and one range at a time each: at most
/// kMostReaders, kMostOfOne from one device, and no more than share the rate with kLeastRate for
/// each. A peer that asks for nothing for a minute, or does not take what it asked for, is let go.
/// take() and stop() are for one thread.
class RangeServer {
 public:
  static constexpr size_t kMostReaders = 16;
  static constexpr size_t kMostOfOne = 4;
  /// Bytes a second: well above what RangeClient takes for a peer that only holds it up.
  static constexpr uint64_t kLeastRate = 64'000;

  explicit RangeServer(ShareOptions options);
  ~RangeServer() { stop(); }
  RangeServer(const RangeServer&) = delete;
  RangeServer& operator=(const RangeServer&) = delete;

  /// Whether one more connection of this device is taken now. Errors: kUnsupported (nothing is
  /// shared here), kMemory (too many).
  [[nodiscard]] Status may_take(const wire::Connection& connection);
  /// Serves a connection that said hello and is to be answered with `welcome`.
  void take(std::unique_ptr<wire::Connection> connection, wire::Bytes welcome);
  /// Ends all connections and waits for their threads.
  void stop();
  /// Joins threads that have ended.
  void reap() { tasks_.reap(); }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] Status admitted(const wire::Connection& connection) const;
  void serve(wire::Connection& connection, const wire::Bytes& welcome);
  Status answer(wire::Connection& connection);
  /// Waits until `count` bytes more may be sent; false once this stops.
  bool wait_for_turn(uint64_t count);

  const ShareOptions options_;
  const size_t most_readers_;
  const size_t part_;  ///< bytes in one frame
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  ///< guards what follows
  std::list<std::shared_ptr<wire::Connection>> open_;
  wire::Clock::time_point free_at_{};  ///< when what was sent fits the limit
  Tasks tasks_;
};

}  // namespace tandem::ring
