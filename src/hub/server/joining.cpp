// Joining a room: by proof of its key, by a pass, or through the lobby. And pairs for the relay.
#include <algorithm>

#include "hub/identity.h"
#include "hub/link.h"
#include "hub/secret.h"
#include "hub/server/core.h"
#include "hub/server/rooms.h"

namespace tandem::hub {
namespace {

constexpr int64_t kMaxWaiting = 8;
constexpr int64_t kMaxMembers = 256;
constexpr int64_t kDeniedMs = 600000;
constexpr int64_t kAskingMs = 180000;  ///< who has not asked again for so long waits no more
constexpr int64_t kAskAgainMs = 60000;
constexpr size_t kMaxSealed = 4096;

struct Asked {
  std::string code;
  std::string role;
  std::optional<std::string> nonce;
  std::optional<std::string> proof;
  std::optional<std::string> pass;
};

struct Member {
  std::string state;
  std::string pass_hash;
  std::string sealed;
  int64_t joined = 0;
};

Result<std::optional<Member>> find_member(Connection& connection, const std::string& code,
                                          const std::string& device) {
  TANDEM_ASSIGN(const Rows rows,
                connection.run("SELECT state, pass_hash, sealed, joined FROM room_members WHERE "
                               "room = $1 AND device = $2",
                               {code, device}));
  if (rows.empty()) return std::optional<Member>();
  return std::optional<Member>(
      Member{text_of(rows[0], 0), text_of(rows[0], 1), text_of(rows[0], 2), number_of(rows[0], 3)});
}

/// Writes a member's row; who is in already keeps role and placement.
Status set_member(Connection& connection, const Asked& asked, const std::string& device,
                  const std::string& state, const std::string& pass_hash) {
  TANDEM_TRY(connection.run(
      "INSERT INTO room_members (room, device, role, state, pass_hash, sealed, placement, joined) "
      "VALUES ($1, $2, $3, $4, $5, '', '{}', $6) ON CONFLICT (room, device) DO UPDATE SET state = "
      "excluded.state, role = CASE WHEN room_members.role = 'host' THEN 'host' ELSE excluded.role "
      "END, pass_hash = CASE WHEN excluded.pass_hash = '' THEN room_members.pass_hash ELSE "
      "excluded.pass_hash END, joined = excluded.joined",
      {asked.code, device, asked.role, state, pass_hash, now_ms()}));
  return {};
}

/// Lets a device in. `with_pass`: it may come back without asking; the pass is given once.
Result<Response> admit(Connection& connection, Core& core, const Asked& asked,
                       const std::string& device, const std::optional<Member>& before,
                       bool with_pass) {
  TANDEM_ASSIGN(const Rows count,
                connection.run("SELECT count(*) FROM room_members WHERE room = $1 AND state = 'in'",
                               {asked.code}));
  const bool again = before.has_value() && before->state == "in";
  if (!again && number_of(count.at(0), 0) >= kMaxMembers) {
    return refusal(409, "conflict", "the room has 256 members");
  }
  const std::string pass = with_pass ? make_token() : "";
  TANDEM_TRY(set_member(connection, asked, device, "in", with_pass ? token_hash(pass) : ""));
  TANDEM_TRY(add_event(connection, "room:" + asked.code, again ? "returned" : "joined", device, "",
                       {{"device", device}, {"role", asked.role}}));
  TANDEM_TRY(
      connection.run("UPDATE rooms SET touched = $1 WHERE code = $2", {now_ms(), asked.code}));
  TANDEM_ASSIGN(const Json room, room_json(connection, core, asked.code, false));
  Json body{{"state", "in"}, {"room", room}};
  if (with_pass) body["pass"] = pass;
  if (before.has_value() && !before->sealed.empty()) body["sealed"] = before->sealed;
  return reply(body);
}

/// Takes a challenge out of the store: true if it was there. A transaction of its own, since what
/// follows may be refused and rolled back.
Result<bool> use_nonce(Core& core, const std::string& nonce) {
  bool there = false;
  const Status status = core.database->transaction([&](Connection& connection) -> Status {
    TANDEM_TRY(connection.run("DELETE FROM challenges WHERE nonce = $1 AND until > $2",
                              {nonce, now_ms()}));
    there = connection.changes() == 1;
    return {};
  });
  if (!status.ok()) return status.error();
  return there;
}

/// Whether the proof is that of the room's key, for a nonce that was just used.
bool proves_key(const Asked& asked, const RoomRow& room, const std::string& device) {
  if (!asked.nonce || !asked.proof) return false;
  const auto signature = from_base64url(*asked.proof);
  const auto key = from_base64url(room.verifier);
  const std::string message = "tandem join " + room.code + " " + device + " " + *asked.nonce;
  return signature && key && verify_signature(*key, message, *signature);
}

/// Puts a device into the lobby, or says how its wait stands.
Result<Response> wait_in_lobby(Connection& connection, const Asked& asked,
                               const std::string& device, const std::optional<Member>& before,
                               bool watch) {
  if (before.has_value() && before->state == "denied" && now_ms() - before->joined < kDeniedMs) {
    return refusal(403, "denied", "the room's host said no");
  }
  if (before.has_value() && before->state == "waiting") {
    if (now_ms() - before->joined > kAskAgainMs) {
      TANDEM_TRY(connection.run(
          "UPDATE room_members SET joined = $1 WHERE room = $2 AND device = $3 AND state = "
          "'waiting'",
          {now_ms(), asked.code, device}));
    }
    if (!watch) return reply({{"state", "waiting"}}, 202);
    Response response = nothing();
    response.subjects = {"device:" + device};
    response.caller = device;
    return response;
  }
  TANDEM_TRY(connection.run(
      "DELETE FROM room_members WHERE room = $1 AND state = 'waiting' AND joined < $2",
      {asked.code, now_ms() - kAskingMs}));
  TANDEM_ASSIGN(const Rows rows, connection.run("SELECT count(*) FROM room_members WHERE room = $1 "
                                                "AND state IN ('waiting', 'allowed')",
                                                {asked.code}));
  if (number_of(rows.at(0), 0) >= kMaxWaiting) {
    return too_many("eight devices wait for that room's host already", 15);
  }
  TANDEM_TRY(set_member(connection, asked, device, "waiting", ""));
  TANDEM_TRY(add_event(connection, "room:" + asked.code, "asks", device, "", {{"device", device}}));
  return reply({{"state", "waiting"}}, 202);
}

}  // namespace

Response join_room(Call& call) {
  Core& core = call.core;
  const std::string& device = call.caller.device;
  if (const int64_t seconds = core.guesses.wait(call.request.address); seconds > 0) {
    return too_many("too many wrong codes or keys", seconds);
  }
  Asked asked;
  asked.role = text_field(call.body, "role", 16).value_or("worker");
  asked.nonce = text_field(call.body, "nonce", 64);
  asked.proof = text_field(call.body, "proof", 128);
  asked.pass = text_field(call.body, "pass", 64);
  if (asked.role != "worker" && asked.role != "guest") {
    return refusal(400, "invalid", "role has to be worker or guest");
  }
  const auto code = parse_code(call.request.path.at(2));
  if (code.ok()) asked.code = *code;
  if (asked.proof && asked.nonce) {
    const auto used = use_nonce(core, *asked.nonce);
    if (!used.ok()) {
      core.log(used.error().message);
      return refusal(503, "io", "the hub's store does not answer; try again");
    }
    if (!*used) asked.nonce.reset();
  }
  bool guessed = false;  // counted outside the transaction, which may run several times
  Response response = respond(core, [&](Connection& connection) -> Result<Response> {
    guessed = false;
    TANDEM_ASSIGN(const auto room, find_room(connection, asked.code));
    if (!room.has_value()) {
      guessed = true;
      return refusal(404, "not_found", "there is no room of that code");
    }
    TANDEM_ASSIGN(const auto before, find_member(connection, asked.code, device));
    if (asked.proof) {
      if (proves_key(asked, *room, device))
        return admit(connection, core, asked, device, before, false);
      guessed = true;
      return refusal(403, "forbidden", "the link's key is not that of the room");
    }
    if (asked.pass) {
      if (before.has_value() && !before->pass_hash.empty() && before->state != "denied" &&
          equal_secrets(before->pass_hash, token_hash(*asked.pass))) {
        return admit(connection, core, asked, device, before, false);
      }
      guessed = true;
      return refusal(403, "forbidden", "the pass is not good for that room any more");
    }
    if (before.has_value() && before->state == "in") {
      return admit(connection, core, asked, device, before, false);
    }
    if (before.has_value() && before->state == "allowed") {
      return admit(connection, core, asked, device, before, true);
    }
    return wait_in_lobby(connection, asked, device, before,
                         query_number(call.request, "wait", 0, 60) > 0);
  });
  if (guessed) core.guesses.count(call.request.address);
  if (response.status == 200) core.tell(response, "joined", device, asked.code);
  if (response.status == 202) core.tell(response, "waits_in_lobby", device, asked.code);
  return response;
}

Response answer_lobby(Call& call) {
  const std::string device = call.request.path.at(4);
  const bool ok =
      call.body.is_object() && call.body.contains("allow") && call.body["allow"].is_boolean();
  if (!ok) return refusal(400, "invalid", "expected allow: true or false");
  const bool allow = call.body["allow"].get<bool>();
  const std::string sealed = text_field(call.body, "sealed", kMaxSealed).value_or("");
  return respond(call.core, [&](Connection& connection) {
    return in_room(connection, call, true, [&](const RoomRow& room) -> Result<Response> {
      TANDEM_TRY(connection.run(
          "UPDATE room_members SET state = $1, sealed = $2, joined = $3 WHERE "
          "room = $4 AND device = $5 AND state = 'waiting'",
          {std::string(allow ? "allowed" : "denied"), sealed, now_ms(), room.code, device}));
      if (connection.changes() == 0) {
        return refusal(404, "not_found", "that device does not wait in the lobby");
      }
      TANDEM_TRY(add_event(connection, "device:" + device, allow ? "allowed" : "denied",
                           call.caller.device, "", {{"room", room.code}}));
      return nothing();
    });
  });
}

Response relay_pair(Call& call) {
  const auto peer = call.request.query.find("peer");
  const auto channel = call.request.query.find("channel");
  const std::string name = channel == call.request.query.end() ? "" : channel->second;
  if (peer == call.request.query.end() || name.size() > 64 || peer->second == call.caller.device) {
    return refusal(400, "invalid", "expected peer (another device) and channel (up to 64 bytes)");
  }
  return respond_reading(call.core, [&](Connection& connection) {
    return in_room(connection, call, false, [&](const RoomRow& room) -> Result<Response> {
      TANDEM_ASSIGN(const std::string state, member_state(connection, room.code, peer->second));
      if (state != "in") return refusal(404, "not_found", "that device is not in the room");
      // Both ends name the same pair.
      const std::string low = std::min(call.caller.device, peer->second);
      const std::string high = std::max(call.caller.device, peer->second);
      Response response;
      response.status = 101;
      response.caller = call.caller.device;
      response.body = room.code + "\n" + low + "\n" + high + "\n" + name;
      return response;
    });
  });
}

}  // namespace tandem::hub
