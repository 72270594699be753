// Ways to the other devices of a room: their addresses, and the hub's relay for whoever can't be
// reached at any.
//
//   way  = place ("," place)*
//   place = HOST:PORT | "relay:" DEVICE
//
// A way's addresses are tried at once, and after them the relay. What goes through the relay is a
// connection like any other, with TLS between the devices inside: the hub carries sealed bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/client.h"
#include "hub/relay_streams.h"
#include "wire/tcp.h"

namespace tandem::room {

/// The way to a device through the hub.
std::string relay_way(const std::string& device);
/// A way that has only the relay.
bool is_relayed(std::string_view way);
/// The way of these places, as many as fit where a ring names an address.
std::string way_of(const std::vector<std::string>& places);

/// Any thread.
class Relay {
 public:
  /// For the device that `client` is known as. `stop`, once set, ends calls; it must outlive this.
  Relay(const hub::Client& client, std::string code, const std::atomic<bool>* stop);

  /// A stream to whoever is at the end of `way`. Addresses get 3 s of `timeout`. Errors: kInvalid
  /// (no way), those of wire::connect() and hub::RelayStreams::call(), kCancelled.
  Result<wire::Socket> dial(const std::string& way, std::chrono::milliseconds timeout);
  /// As hub::RelayStreams::answer().
  bool answer(const hub::Json& event, const std::function<void(wire::Socket)>& accept) {
    return streams_.answer(event, accept);
  }
  /// The hub gave this device another token.
  void use_token(const std::string& token);
  /// Streams through the hub that are open.
  [[nodiscard]] size_t open() const { return streams_.open(); }

 private:
  hub::Client client();

  const hub::HubAddress hub_;
  const std::atomic<bool>* stop_;
  std::mutex mutex_;  ///< guards token_
  std::string token_;
  hub::RelayStreams streams_;
};

}  // namespace tandem::room
