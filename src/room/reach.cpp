#include "room/reach.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "wire/tcp.h"

namespace tandem::room {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 4s;
constexpr auto kRelayPatience = 6s;
// For which addresses that come earlier in the order may still answer, once one did.
constexpr auto kGrace = 200ms;

/// One address that is tried by a thread of its own.
struct Attempt {
  std::string where;
  Status status;
  bool ended = false;
  wire::Connection* connection = nullptr;  ///< while it shakes hands
};

/// All of a device's addresses, tried at once.
class Attempts {
 public:
  Attempts(const wire::Fingerprint& pin, const wire::Tls& tls) : pin_(pin), tls_(tls) {}

  void add(std::string where) { list_.push_back({std::move(where), {}, false, nullptr}); }
  /// Waits until the first in their order has answered, or none can any more.
  const std::vector<Attempt>& run() {
    std::vector<std::thread> threads;
    threads.reserve(list_.size());
    for (Attempt& attempt : list_) threads.emplace_back([this, &attempt] { run(attempt); });
    {
      std::unique_lock lock(mutex_);
      const auto all = [&] {
        return std::all_of(list_.begin(), list_.end(), [](const auto& one) { return one.ended; });
      };
      const auto any = [&] {
        return std::any_of(list_.begin(), list_.end(),
                           [](const auto& one) { return one.ended && one.status.ok(); });
      };
      changed_.wait(lock, [&] { return all() || any(); });
      changed_.wait_for(lock, kGrace, all);
      stop_ = true;
      for (const Attempt& attempt : list_) {
        if (attempt.connection != nullptr) attempt.connection->shutdown();
      }
    }
    for (std::thread& thread : threads) thread.join();
    return list_;
  }

 private:
  void run(Attempt& attempt) {
    Status status = answers(attempt);
    if (!status.ok()) status = status.error().in(attempt.where);
    const std::lock_guard lock(mutex_);
    attempt.connection = nullptr;
    attempt.status = std::move(status);
    attempt.ended = true;
    changed_.notify_all();
  }
  Status answers(Attempt& attempt) {
    const auto deadline = wire::Clock::now() + kPatience;
    TANDEM_ASSIGN(const wire::Address address, wire::parse_address(attempt.where));
    TANDEM_ASSIGN(wire::Socket socket, wire::connect(address, kPatience, &stop_));
    wire::Connection connection(std::move(socket), tls_.connecting(pin_));
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return Error{ErrorKind::kCancelled, "stopped"};
      attempt.connection = &connection;
    }
    Status secured = connection.secure_until(deadline);
    const std::lock_guard lock(mutex_);
    attempt.connection = nullptr;  // before it goes
    return secured;
  }

  const wire::Fingerprint& pin_;
  const wire::Tls& tls_;
  std::mutex mutex_;  ///< guards what the list's members say, but not their addresses
  std::condition_variable changed_;
  std::vector<Attempt> list_;
  std::atomic<bool> stop_{false};
};

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]");
}

}  // namespace

Result<std::string> reach(const Member& member, const wire::Tls& tls, const std::string& loopback) {
  if (!member.certificate) {
    return Error{ErrorKind::kPeer, "its certificate is not known"};
  }
  Attempts attempts(*member.certificate, tls);
  bool any = false;
  for (const std::string& address : member.addresses) {
    if (is_loopback(address) && member.loopback != loopback) continue;
    attempts.add(address);
    any = true;
  }
  if (!any) return Error{ErrorKind::kPeer, "it has no address that could be reached from here"};
  std::string why;
  for (const Attempt& attempt : attempts.run()) {
    if (attempt.status.ok()) return attempt.where;
    why += (why.empty() ? "" : "; ") + attempt.status.error().message;
  }
  return Error{ErrorKind::kPeer, "can't be reached: " + why};
}

Result<std::string> reach_by_relay(const Member& member, const wire::Tls& tls, Relay& relay) {
  if (!member.certificate) {
    return Error{ErrorKind::kPeer, "its certificate is not known"};
  }
  std::string way = relay_way(member.device);
  TANDEM_ASSIGN(wire::Socket socket, relay.dial(way, kRelayPatience));
  wire::Connection connection(std::move(socket), tls.connecting(*member.certificate));
  TANDEM_TRY(connection.secure_until(wire::Clock::now() + kPatience));
  return way;
}

std::string way_for_others(const Member& member) {
  std::vector<std::string> places;
  for (const std::string& address : member.addresses) {
    if (!is_loopback(address)) places.push_back(address);
  }
  return way_of(places);
}

}  // namespace tandem::room
