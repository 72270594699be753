// Whose turn it is to be a room's host: one process at a time asks the room's devices for an
// answer. A turn has a token, is kept by renewing it, and is over when its holder says so or is
// silent for as long as it was given.
#include <algorithm>

#include "hub/server/core.h"
#include "hub/server/rooms.h"

namespace tandem::hub {
namespace {

constexpr int64_t kTurnMs = 45000;  ///< three heartbeats
constexpr int64_t kLeastTurnMs = 1000;
constexpr int64_t kMostTurnMs = 120000;

int64_t number_field(const Json& body, const char* name, int64_t otherwise) {
  if (!body.is_object()) return otherwise;
  const auto found = body.find(name);
  return found != body.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

Status tell(Connection& connection, const std::string& code, const std::string& device,
            int64_t until) {
  return add_event(connection, "room:" + code, "turn", device, "",
                   {{"device", device}, {"until", until}});
}

Result<Response> take(Connection& connection, const Call& call, const RoomRow& room) {
  const std::string& device = call.caller.device;
  const int64_t token = number_field(call.body, "token", 0);
  const int64_t now = now_ms();
  const int64_t until =
      now + std::clamp(number_field(call.body, "lease_ms", kTurnMs), kLeastTurnMs, kMostTurnMs);
  TANDEM_ASSIGN(
      const Rows rows,
      connection.run("SELECT device, token, until FROM turns WHERE room = $1", {room.code}));
  const bool taken = !rows.empty() && number_of(rows[0], 2) >= now;
  const bool own = !rows.empty() && token != 0 && number_of(rows[0], 1) == token &&
                   text_of(rows[0], 0) == device;
  if (own) {
    // Nobody else took it meanwhile: it goes on even if it was over.
    TANDEM_TRY(connection.run("UPDATE turns SET until = $1 WHERE room = $2", {until, room.code}));
    return reply({{"token", token}, {"until", until}});
  }
  if (token != 0) return refusal(409, "stale", "the turn is over: another one has it or had it");
  if (taken) {
    return refusal(409, "conflict", "it is the turn of device " + text_of(rows[0], 0));
  }
  TANDEM_ASSIGN(const Rows fence, connection.run("UPDATE counters SET value = value + 1 WHERE name "
                                                 "= 'fence' RETURNING value",
                                                 {}));
  const int64_t fresh = number_of(fence.at(0), 0);
  TANDEM_TRY(connection.run(
      "INSERT INTO turns (room, device, token, until) VALUES ($1, $2, $3, $4) ON CONFLICT (room) "
      "DO UPDATE SET device = excluded.device, token = excluded.token, until = excluded.until",
      {room.code, device, fresh, until}));
  if (room.host != device) TANDEM_TRY(make_host(connection, room.code, device));
  TANDEM_TRY(tell(connection, room.code, device, until));
  return reply({{"token", fresh}, {"until", until}});
}

}  // namespace

Response take_turn(Call& call) {
  return respond(call.core, [&](Connection& connection) {
    return in_room(connection, call, false,
                   [&](const RoomRow& room) { return take(connection, call, room); });
  });
}

Response end_turn(Call& call) {
  const std::string token = call.request.path.at(4);
  return respond(call.core, [&](Connection& connection) {
    return in_room(connection, call, false, [&](const RoomRow& room) -> Result<Response> {
      TANDEM_ASSIGN(const Rows rows,
                    connection.run("SELECT token FROM turns WHERE room = $1 AND device = $2",
                                   {room.code, call.caller.device}));
      if (rows.empty() || std::to_string(number_of(rows[0], 0)) != token) {
        return refusal(409, "stale", "the turn is over: another one has it or had it");
      }
      TANDEM_TRY(connection.run("DELETE FROM turns WHERE room = $1", {room.code}));
      TANDEM_TRY(tell(connection, room.code, "", 0));
      return nothing();
    });
  });
}

}  // namespace tandem::hub
