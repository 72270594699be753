// How this device reaches another one of the room.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "room/member.h"
#include "room/relay.h"
#include "wire/tls.h"

namespace tandem::room {

/// The first of a member's addresses, in its order, at which that very device answers: all are
/// tried at once, over TLS with its certificate pinned. `loopback`: room::loopback_mark() of this
/// device; loopback addresses are tried only if the member's is the same. Error: kPeer, which says
/// what happened at each.
Result<std::string> reach(const Member& member, const wire::Tls& tls, const std::string& loopback);
/// The same through the hub's relay; the way that leads there.
Result<std::string> reach_by_relay(const Member& member, const wire::Tls& tls, Relay& relay);
/// What another device of the room may reach a member by: its addresses, without those of the
/// loopback.
std::string way_for_others(const Member& member);

}  // namespace tandem::room
