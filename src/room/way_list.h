// The way to a device of a room as a ring tells it to a worker.
//
//   way   = place ("," place)*
//   place = HOST:PORT | "relay:" DEVICE        DEVICE: 32 hexadecimal digits
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "wire/tcp.h"

namespace tandem::room {

/// What a way says.
struct WayList {
  std::vector<wire::Address> addresses;  ///< 16 at most
  std::string device;                    ///< behind the hub's relay; empty: there is none
};

/// Any bytes. Errors: kInvalid (no place at all, one that is neither, two relays).
Result<WayList> parse_way(std::string_view way);

/// The way to a device through the hub.
std::string relay_way(const std::string& device);
/// A way that has only the relay.
bool is_relayed(std::string_view way);
/// The way of these places, as many as fit where a ring names an address.
std::string way_of(const std::vector<std::string>& places);

}  // namespace tandem::room
