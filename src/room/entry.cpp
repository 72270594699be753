#include "room/entry.h"

#include <algorithm>

#include "hub/sealed_box.h"
#include "hub/secret.h"

namespace tandem::room {
namespace {

constexpr int kLobbyWait = 25;  // seconds of one request

bool stopped(const EnterOptions& options) {
  return options.cancel != nullptr && *options.cancel;
}

/// The room's key in what the host sent along; empty if there is none for this device.
std::string sealed_key(const hub::Identity& identity, const std::string& sealed) {
  const auto box = hub::from_base64url(sealed);
  if (!box) return "";
  const auto key = hub::open_box(identity, *box);
  return key.ok() && key->size() == 16 ? *key : "";
}

Result<hub::Joined> ask(hub::Home& home, hub::Client& client, const Way& way,
                        const EnterOptions& options) {
  const bool lobby = way.link.key.empty() && way.pass.empty();
  auto joined = client.join(way.link, home.identity(), options.role, way.pass, 0);
  if (!joined.ok() || joined->in || !lobby) return joined;
  if (options.waiting) options.waiting();
  while (!stopped(options)) {
    joined = client.join(way.link, home.identity(), options.role, "", kLobbyWait);
    if (!joined.ok() || joined->in) return joined;
  }
  return Error{ErrorKind::kCancelled, "stopped"};
}

}  // namespace

Result<Way> find_way(const hub::Home& home, const std::string& text) {
  Way way;
  if (text.find('/') == std::string::npos) {
    TANDEM_ASSIGN(const std::string code, hub::parse_code(text));
    TANDEM_ASSIGN(const auto hubs, home.hubs());
    for (const hub::HubAddress& hub : hubs) {
      TANDEM_ASSIGN(const auto known, home.room(hub, code));
      if (known.key.empty() && known.pass.empty()) continue;
      return Way{{hub, code, known.key}, known.pass};
    }
    if (hubs.size() == 1) return Way{{hubs.front(), code, ""}, ""};
    return Error{ErrorKind::kNotFound,
                 "room " + code + " is not known here, and " +
                     (hubs.empty() ? "no hub is" : "several hubs are") +
                     "; use its link, or name the hub: https://HOST:PORT/room/" + code};
  }
  TANDEM_ASSIGN(way.link, hub::parse_link(text));
  TANDEM_ASSIGN(const auto known, home.room(way.link.hub, way.link.code));
  if (way.link.key.empty()) way.link.key = known.key;
  way.pass = known.pass;
  return way;
}

Result<Json> enter(hub::Home& home, hub::Client& client, Way& way, const EnterOptions& options) {
  // A key that came with a link is proved, even by a device that is in: a wrong one shows at once.
  TANDEM_ASSIGN(const auto known, home.room(way.link.hub, way.link.code));
  const bool proved = way.link.key.empty() || known.key == way.link.key;
  if (proved) {
    auto room = client.room(way.link.code);
    if (room.ok() || client.status() != 404) return room;
  }
  TANDEM_ASSIGN(const hub::Joined joined, ask(home, client, way, options));
  if (!joined.in) return Error{ErrorKind::kPeer, "the hub did not let this device in"};
  if (!joined.pass.empty()) way.pass = joined.pass;
  if (way.link.key.empty()) way.link.key = sealed_key(home.identity(), joined.sealed);
  TANDEM_TRY(home.remember_room(way.link.hub, way.link.code, {way.link.key, way.pass}));
  return joined.room;
}

Status allow(hub::Client& client, const hub::RoomLink& link, const std::string& device,
             const Json& room) {
  for (const Json& waiting : part_of(room, "lobby")) {
    if (text_of(waiting, "device") != device) continue;
    const auto key = hub::from_base64url(text_of(waiting, "public_key"));
    // The id is a hash of the key: the hub can't put its own in the device's place.
    if (!key || key->size() != 32 || hub::device_id(*key) != device) {
      return Error{ErrorKind::kPeer, "the hub shows a key that is not that of device " + device};
    }
    std::string sealed;
    if (!link.key.empty()) {
      TANDEM_ASSIGN(const std::string box, hub::seal_box(*key, link.key));
      sealed = hub::base64url(box);
    }
    return client.answer_lobby(link.code, device, true, sealed);
  }
  return Error{ErrorKind::kNotFound, "device " + device + " does not wait in the lobby"};
}

Result<std::shared_ptr<const wire::Tls>> room_tls(const hub::Identity& identity,
                                                  const std::string& key) {
  if (key.size() != 16) {
    return invalid("this device is in the room but has no key of it; use the room's link");
  }
  // The first half: HKDF's output is as good in any part.
  const std::string secret = hub::peer_secret(key);
  wire::RoomKey room_key{};
  std::copy_n(secret.begin(), room_key.size(), room_key.begin());
  TANDEM_ASSIGN(auto own, wire::Identity::of_pem(identity.key_pem(), identity.certificate_pem()));
  return wire::Tls::create(std::move(own), room_key);
}

}  // namespace tandem::room
