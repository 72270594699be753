#include "room/relay.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace tandem::room {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kScheme = "relay:";
constexpr auto kDirect = 3000ms;
constexpr size_t kMostPlaces = 16;
/// Longest address that a ring tells a worker (wire::Dial).
constexpr size_t kMostWay = 300;

std::vector<std::string> split(std::string_view way) {
  std::vector<std::string> places;
  while (!way.empty()) {
    const size_t comma = std::min(way.find(','), way.size());
    places.emplace_back(way.substr(0, comma));
    way.remove_prefix(std::min(comma + 1, way.size()));
  }
  return places;
}

/// Connects to several addresses at once; the first that answers.
class Race {
 public:
  explicit Race(const std::atomic<bool>* stop) : stop_(stop) {}

  Result<wire::Socket> run(const std::vector<wire::Address>& addresses,
                           std::chrono::milliseconds timeout) {
    left_ = addresses.size();
    std::vector<std::thread> threads;
    threads.reserve(addresses.size());
    for (const wire::Address& address : addresses) {
      threads.emplace_back([this, &address, timeout] { connect(address, timeout); });
    }
    {
      std::unique_lock lock(mutex_);
      while (left_ > 0 && !won_) {
        changed_.wait_for(lock, 50ms);
        if (*stop_) over_ = true;
      }
      over_ = true;
    }
    for (std::thread& thread : threads) thread.join();
    if (won_) return std::move(*won_);
    if (*stop_) return Error{ErrorKind::kCancelled, "stopped"};
    return Error{ErrorKind::kPeer, why_};
  }

 private:
  void connect(const wire::Address& address, std::chrono::milliseconds timeout) {
    auto socket = wire::connect(address, timeout, &over_);
    const std::lock_guard lock(mutex_);
    --left_;
    if (socket.ok() && !won_) won_ = std::move(*socket);
    if (!socket.ok()) why_ += (why_.empty() ? "" : "; ") + socket.error().message;
    changed_.notify_all();
  }

  const std::atomic<bool>* stop_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  size_t left_ = 0;
  std::optional<wire::Socket> won_;
  std::string why_;
};

}  // namespace

std::string relay_way(const std::string& device) {
  return std::string(kScheme) + device;
}

bool is_relayed(std::string_view way) {
  return way.starts_with(kScheme) && way.find(',') == std::string_view::npos;
}

std::string way_of(const std::vector<std::string>& places) {
  std::string way;
  for (const std::string& place : places) {
    if (way.size() + (way.empty() ? 0 : 1) + place.size() > kMostWay) continue;
    way += (way.empty() ? "" : ",") + place;
  }
  return way;
}

Relay::Relay(const hub::Client& client, std::string code, const std::atomic<bool>* stop)
    : hub_(client.hub()),
      stop_(stop),
      token_(client.token()),
      streams_([this] { return this->client(); }, std::move(code)) {}

hub::Client Relay::client() {
  const std::lock_guard lock(mutex_);
  hub::Client client(hub_, hub::Trust::kNamed, token_);
  client.stop_on(stop_);
  return client;
}

void Relay::use_token(const std::string& token) {
  const std::lock_guard lock(mutex_);
  token_ = token;
}

Result<wire::Socket> Relay::dial(const std::string& way, std::chrono::milliseconds timeout) {
  const auto deadline = wire::Clock::now() + timeout;
  std::vector<wire::Address> addresses;
  std::string device;
  for (const std::string& place : split(way)) {
    if (place.starts_with(kScheme)) {
      device = place.substr(kScheme.size());
    } else if (addresses.size() < kMostPlaces) {
      TANDEM_ASSIGN(wire::Address address, wire::parse_address(place));
      addresses.push_back(std::move(address));
    }
  }
  if (addresses.empty() && device.empty()) return invalid("a device without an address");
  std::string why;
  if (!addresses.empty()) {
    auto socket = Race(stop_).run(addresses, std::min(timeout, kDirect));
    if (socket.ok() || device.empty()) return socket;
    why = socket.error().message + "; ";
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - wire::Clock::now());
  auto socket = streams_.call(device, std::max(left, 1ms));
  if (!socket.ok()) return socket.error().in(why + "through the hub");
  return socket;
}

}  // namespace tandem::room
