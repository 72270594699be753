// How this device reaches another one of the room.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "room/member.h"
#include "wire/tls.h"

namespace tandem::room {

/// The first of a member's addresses, in its order, at which that very device answers: all are
/// tried at once, over TLS with its certificate pinned. `loopback`: room::loopback_mark() of this
/// device; loopback addresses are tried only if the member's is the same. Error: kPeer, which says
/// what happened at each.
///
/// A device that is reached at none of them could still be reached through the hub's relay: this is
/// where that way would be taken.
Result<std::string> reach(const Member& member, const wire::Tls& tls, const std::string& loopback);

}  // namespace tandem::room
