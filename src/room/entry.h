// Ways into a room: what a user names it by, and what a device needs to be in it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "hub/client.h"
#include "room/json.h"
#include "wire/tls.h"

namespace tandem::room {

/// A room that this device has a way into.
struct Way {
  hub::RoomLink link;  ///< the key is empty if it is not known
  std::string pass;    ///< or empty
};

/// What `text` names: an invite link, or a code (of a room that this device knows, or of the only
/// hub that it knows). What the device remembers is added. Errors: kInvalid, kNotFound.
Result<Way> find_way(const hub::Home& home, const std::string& text);

struct EnterOptions {
  std::string role = "worker";  ///< or "guest": asks for answers, lends nothing
  /// Told once the device waits in the lobby.
  std::function<void()> waiting;
  const std::atomic<bool>* cancel = nullptr;
};

/// Joins, by key, pass, or through the lobby, where it waits until the host answers; remembers key
/// and pass. A device that is in already stays as it is. Returns the room (docs/api.md). Errors:
/// kPeer (refused, no hub), kNotFound (no such room), kMemory (too many wrong ones), kCancelled.
Result<Json> enter(hub::Home& home, hub::Client& client, Way& way, const EnterOptions& options);

/// Allows a device of the lobby: it gets the room's key, sealed so that it alone can read it.
/// `key` may be empty: then it gets in, and can't talk to other devices. Errors: kNotFound (it does
/// not wait there), kPeer (not the host's to say).
Status allow(hub::Client& client, const hub::RoomLink& link, const std::string& device,
             const Json& room);

/// TLS between devices of that room, with this device's certificate. Errors: kInvalid (no key).
Result<std::shared_ptr<const wire::Tls>> room_tls(const hub::Identity& identity,
                                                  const std::string& key);

}  // namespace tandem::room
