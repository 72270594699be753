// Two connections whose bytes go to each other: the hub sees only what the ends sealed.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "hub/server/server.h"
#include "hub/server/signals.h"
#include "hub/server/stream.h"

namespace tandem::hub {

class RelayDesk {
 public:
  explicit RelayDesk(ServerFigures& figures) : figures_(figures) {}

  /// Waits up to 30 s for the other end of `pair`, then answers both with 101 and carries their
  /// bytes until one ends. At most 64 KiB of each direction are held; who reads slowly slows the
  /// sender. `held` are bytes that came behind the request. A second request of the same `caller`
  /// takes the place of its first. A device has at most 64 streams that wait and 256 in all.
  boost::asio::awaitable<void> serve(std::string pair, std::string caller,
                                     std::shared_ptr<TlsStream> stream, std::string held);

 private:
  struct Side {
    std::shared_ptr<TlsStream> stream;
    std::shared_ptr<TlsStream> other;  ///< set by the second end before it wakes the first
    std::shared_ptr<Signals::Waiter> waiter;
    std::string caller;
  };
  /// Streams of each device. The counters outlive the desk: coroutines may end after it.
  struct Streams {
    std::mutex mutex;  ///< guards of_caller
    std::unordered_map<std::string, size_t> of_caller;
  };
  class Counted;

  boost::asio::awaitable<void> carry(std::shared_ptr<TlsStream> from, std::shared_ptr<TlsStream> to,
                                     std::string held);
  /// With mutex_ held.
  [[nodiscard]] size_t waiting_of(const std::string& caller) const;

  ServerFigures& figures_;
  std::shared_ptr<Streams> streams_ = std::make_shared<Streams>();
  std::mutex mutex_;  ///< guards waiting_ and the `other` of each
  std::unordered_map<std::string, std::shared_ptr<Side>> waiting_;
};

}  // namespace tandem::hub
