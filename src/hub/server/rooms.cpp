// Rooms: made, shown, left, closed; who is host; events between members.
#include <algorithm>

#include "hub/link.h"
#include "hub/secret.h"
#include "hub/server/core.h"
#include "hub/server/rooms.h"

namespace tandem::hub {
namespace {

constexpr int64_t kMaxRooms = 10000;
constexpr int64_t kMaxRoomsOfDevice = 32;
constexpr size_t kMaxSpec = 4096;
constexpr size_t kMaxPlacement = 4096;
constexpr size_t kMaxEvent = 65536;
constexpr int64_t kHostSilentMs =
    40000;  ///< a heartbeat, what another hub has not written yet, and slack
constexpr int64_t kMemberSilentMs = 120000;  ///< no candidates for host

Result<Response> create(Connection& connection, Call& call, const std::string& verifier,
                        const std::string& spec) {
  const std::string& device = call.caller.device;
  TANDEM_ASSIGN(const Rows all, connection.run("SELECT count(*) FROM rooms", {}));
  TANDEM_ASSIGN(const Rows own,
                connection.run("SELECT count(*) FROM rooms WHERE creator = $1", {device}));
  if (number_of(all.at(0), 0) >= kMaxRooms || number_of(own.at(0), 0) >= kMaxRoomsOfDevice) {
    return refusal(429, "too_many", "a device may have 32 rooms, a hub 10,000; close one first");
  }
  std::string code;
  do {
    code = make_code();
    TANDEM_TRY(connection.run(
        "INSERT INTO rooms (code, organization, creator, host, verifier, spec, created, touched) "
        "VALUES ($1, $2, $3, $3, $4, $5, $6, $6) ON CONFLICT (code) DO NOTHING",
        {code, call.caller.organization, device, verifier, spec, now_ms()}));
  } while (connection.changes() == 0);
  TANDEM_TRY(connection.run(
      "INSERT INTO room_members (room, device, role, state, pass_hash, sealed, placement, joined) "
      "VALUES ($1, $2, 'host', 'in', '', '', '{}', $3)",
      {code, device, now_ms()}));
  // A code may have been a room's before: whoever still reads that one's events begins again.
  TANDEM_TRY(connection.run("DELETE FROM events WHERE scope = $1", {"room:" + code}));
  TANDEM_TRY(add_event(connection, "room:" + code, "created", device, "", {{"host", device}}));
  TANDEM_ASSIGN(const Json room, room_json(connection, call.core, code, true));
  return reply(room, 201);
}

/// Whether a member would make a better host than another one; both as in room_json().
bool better_host(const Json& a, const Json& b) {
  const bool computer_a = a["kind"] == "computer";
  const bool computer_b = b["kind"] == "computer";
  if (computer_a != computer_b) return computer_a;
  const auto figure = [](const Json& member, const char* key) -> double {
    const Json& report = member["report"];
    if (!report.is_object()) return 0;
    const auto found = report.find(key);
    return found != report.end() && found->is_number() ? found->get<double>() : 0;
  };
  const double memory_a = figure(a, "memory");
  const double memory_b = figure(b, "memory");
  const double speed_a = figure(a, "memory_bandwidth");
  const double speed_b = figure(b, "memory_bandwidth");
  // Memory that is half as fast again weighs more than up to twice as much of it.
  if (speed_a >= 1.5 * speed_b && speed_b > 0 && memory_a * 2 >= memory_b) return true;
  if (speed_b >= 1.5 * speed_a && speed_a > 0 && memory_b * 2 >= memory_a) return false;
  if (memory_a != memory_b) return memory_a > memory_b;
  return a["joined"].get<int64_t>() < b["joined"].get<int64_t>();
}

/// Makes the best member but `without` the host; nobody if there is none.
Status elect(Connection& connection, Core& core, const std::string& code,
             const std::string& without) {
  TANDEM_ASSIGN(const Json room, room_json(connection, core, code, false));
  const Json* best = nullptr;
  for (const Json& member : room["members"]) {
    if (member["device"] == without || member["role"] == "guest") continue;
    if (now_ms() - member["seen"].get<int64_t>() > kMemberSilentMs) continue;
    if (best == nullptr || better_host(member, *best)) best = &member;
  }
  return make_host(connection, code, best == nullptr ? "" : (*best)["device"].get<std::string>());
}

}  // namespace

Status make_host(Connection& connection, const std::string& code, const std::string& device) {
  TANDEM_TRY(connection.run("UPDATE rooms SET host = $1, touched = $2 WHERE code = $3",
                            {device, now_ms(), code}));
  TANDEM_TRY(connection.run(
      "UPDATE room_members SET role = 'worker' WHERE room = $1 AND role = 'host'", {code}));
  TANDEM_TRY(connection.run("UPDATE room_members SET role = 'host' WHERE room = $1 AND device = $2",
                            {code, device}));
  return add_event(connection, "room:" + code, "host", "", "", {{"host", device}});
}

Result<std::optional<RoomRow>> find_room(Connection& connection, const std::string& code) {
  TANDEM_ASSIGN(
      const Rows rows,
      connection.run("SELECT code, creator, host, verifier FROM rooms WHERE code = $1", {code}));
  if (rows.empty()) return std::optional<RoomRow>();
  return std::optional<RoomRow>(
      RoomRow{text_of(rows[0], 0), text_of(rows[0], 1), text_of(rows[0], 2), text_of(rows[0], 3)});
}

Result<std::string> member_state(Connection& connection, const std::string& code,
                                 const std::string& device) {
  TANDEM_ASSIGN(const Rows rows,
                connection.run("SELECT state FROM room_members WHERE room = $1 AND device = $2",
                               {code, device}));
  return rows.empty() ? std::string() : text_of(rows[0], 0);
}

Result<Json> room_json(Connection& connection, Core& core, const std::string& code, bool lobby) {
  TANDEM_ASSIGN(const Rows rooms,
                connection.run("SELECT r.creator, r.host, r.spec, r.created, s.seq FROM rooms r "
                               "LEFT JOIN scopes s ON s.scope = $2 WHERE r.code = $1",
                               {code, "room:" + code}));
  if (rooms.empty()) return Json(nullptr);
  TANDEM_ASSIGN(
      const Rows rows,
      connection.run("SELECT d.id, d.name, d.kind, d.public_key, d.certificate, m.role, m.state, "
                     "m.placement, m.joined, d.seen, d.report, d.settings FROM room_members m "
                     "JOIN devices d ON d.id = m.device WHERE m.room = $1 AND m.state <> 'denied' "
                     "ORDER BY m.joined, d.id",
                     {code}));
  Json members = Json::array();
  Json waiting = Json::array();
  for (const Row& row : rows) {
    Json member{{"device", text_of(row, 0)},
                {"name", text_of(row, 1)},
                {"kind", text_of(row, 2)},
                {"public_key", text_of(row, 3)},
                {"certificate", text_of(row, 4)}};
    if (text_of(row, 6) != "in") {
      waiting.push_back(member);
      continue;
    }
    const Sighting sighting =
        last_sighting(core, text_of(row, 0), number_of(row, 9), text_of(row, 10));
    member["role"] = text_of(row, 5);
    member["placement"] = parse_json(text_of(row, 7));
    member["joined"] = number_of(row, 8);
    member["seen"] = sighting.seen;
    member["report"] = parse_json(sighting.report);
    member["settings"] = parse_json(text_of(row, 11));
    members.push_back(member);
  }
  const Row& room = rooms[0];
  Json result{{"code", code},
              {"creator", text_of(room, 0)},
              {"host", text_of(room, 1)},
              {"spec", parse_json(text_of(room, 2))},
              {"created", number_of(room, 3)},
              {"members", members},
              {"now", now_ms()},
              {"events", number_of(room, 4)}};
  TANDEM_ASSIGN(const Rows turn,
                connection.run("SELECT device, until FROM turns WHERE room = $1 AND until >= $2",
                               {code, now_ms()}));
  if (!turn.empty()) {
    result["turn"] = {{"device", text_of(turn[0], 0)}, {"until", number_of(turn[0], 1)}};
  }
  if (lobby) result["lobby"] = waiting;
  return result;
}

Result<Response> in_room(Connection& connection, const Call& call, bool host_only,
                         const std::function<Result<Response>(const RoomRow&)>& work) {
  const auto code = parse_code(call.request.path.at(2));
  std::string state;
  std::optional<RoomRow> room;
  if (code.ok()) {
    TANDEM_ASSIGN(room, find_room(connection, *code));
    TANDEM_ASSIGN(state, member_state(connection, *code, call.caller.device));
  }
  // Whether there is such a room is for its members to know.
  if (!room.has_value() || state != "in") {
    return refusal(404, "not_found", "there is no such room, or this device is not in it");
  }
  if (host_only && call.caller.device != room->host && call.caller.device != room->creator) {
    return refusal(403, "forbidden", "only the room's host and its creator do that");
  }
  return work(*room);
}

Response create_room(Call& call) {
  const auto verifier = text_field(call.body, "verifier", 64);
  const auto key = verifier ? from_base64url(*verifier) : std::nullopt;
  const Json* spec =
      call.body.is_object() && call.body.contains("spec") ? &call.body["spec"] : nullptr;
  if (!key || key->size() != 32 || spec == nullptr || !spec->is_object()) {
    return refusal(400, "invalid", "expected verifier (32 bytes in base64url) and spec");
  }
  const std::string text = dump(*spec);
  if (text.size() > kMaxSpec) return refusal(413, "invalid", "spec has more than 4096 bytes");
  Response response = respond(
      call.core, [&](Connection& connection) { return create(connection, call, *verifier, text); });
  call.core.tell(response, "room_created", call.caller.device);
  return response;
}

Response list_rooms(Call& call) {
  return respond_reading(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_ASSIGN(const Rows rows,
                  connection.run("SELECT r.code, r.spec, r.host, m.role FROM rooms r JOIN "
                                 "room_members m ON m.room = r.code WHERE m.device = $1 AND "
                                 "m.state = 'in' ORDER BY r.created",
                                 {call.caller.device}));
    Json rooms = Json::array();
    for (const Row& row : rows) {
      rooms.push_back({{"code", text_of(row, 0)},
                       {"spec", parse_json(text_of(row, 1))},
                       {"host", text_of(row, 2)},
                       {"role", text_of(row, 3)}});
    }
    return reply({{"rooms", rooms}});
  });
}

Response show_room(Call& call) {
  return respond_reading(call.core, [&](Connection& connection) {
    return in_room(connection, call, false, [&](const RoomRow& room) -> Result<Response> {
      const bool lobby = call.caller.device == room.host || call.caller.device == room.creator;
      TANDEM_ASSIGN(const Json json, room_json(connection, call.core, room.code, lobby));
      return reply(json);
    });
  });
}

Status remove_room(Connection& connection, const std::string& code) {
  TANDEM_TRY(connection.run("DELETE FROM room_members WHERE room = $1", {code}));
  TANDEM_TRY(connection.run("DELETE FROM jobs WHERE room = $1", {code}));
  TANDEM_TRY(connection.run("DELETE FROM turns WHERE room = $1", {code}));
  TANDEM_TRY(connection.run("DELETE FROM events WHERE scope = $1", {"room:" + code}));
  TANDEM_TRY(connection.run("DELETE FROM rooms WHERE code = $1", {code}));
  return connection.notify("room:" + code);  // who waits there asks again and finds no room
}

Response close_room(Call& call) {
  Response response = respond(call.core, [&](Connection& connection) {
    return in_room(connection, call, true, [&](const RoomRow& room) -> Result<Response> {
      TANDEM_TRY(remove_room(connection, room.code));
      return nothing();
    });
  });
  call.core.tell(response, "room_closed", call.caller.device, call.request.path.at(2));
  return response;
}

Response leave_room(Call& call) {
  const std::string& named = call.request.path.at(4);
  const std::string device = named == "me" ? call.caller.device : named;
  Response response = respond(call.core, [&](Connection& connection) {
    return in_room(
        connection, call, device != call.caller.device,
        [&](const RoomRow& room) -> Result<Response> {
          TANDEM_TRY(connection.run("DELETE FROM room_members WHERE room = $1 AND device = $2",
                                    {room.code, device}));
          if (connection.changes() == 0) {
            return refusal(404, "not_found", "that device is not in the room");
          }
          TANDEM_TRY(
              add_event(connection, "room:" + room.code, "left", call.caller.device, "",
                        {{"device", device}, {"why", named == "me" ? "left" : "sent away"}}));
          if (device == room.host) {
            TANDEM_TRY(elect(connection, call.core, room.code, device));
          }
          return nothing();
        });
  });
  call.core.tell(response, "left", device, call.request.path.at(2));
  return response;
}

Response place_member(Call& call) {
  const std::string text = dump(call.body);
  if (!call.body.is_object() || text.size() > kMaxPlacement) {
    return refusal(400, "invalid", "expected an object of at most 4096 bytes: layers, or why none");
  }
  const std::string device = call.request.path.at(4);
  return respond(call.core, [&](Connection& connection) {
    return in_room(connection, call, true, [&](const RoomRow& room) -> Result<Response> {
      TANDEM_TRY(
          connection.run("UPDATE room_members SET placement = $1 WHERE room = $2 AND device "
                         "= $3 AND state = 'in'",
                         {text, room.code, device}));
      if (connection.changes() == 0) {
        return refusal(404, "not_found", "that device is not in the room");
      }
      TANDEM_TRY(add_event(connection, "room:" + room.code, "placed", call.caller.device, "",
                           {{"device", device}, {"placement", call.body}}));
      return nothing();
    });
  });
}

Response choose_host(Call& call) {
  return respond(call.core, [&](Connection& connection) {
    return in_room(connection, call, false, [&](const RoomRow& room) -> Result<Response> {
      TANDEM_ASSIGN(const Rows rows,
                    connection.run("SELECT seen FROM devices WHERE id = $1", {room.host}));
      const int64_t stored = rows.empty() ? 0 : number_of(rows[0], 0);
      const bool silent =
          now_ms() - last_sighting(call.core, room.host, stored, "{}").seen > kHostSilentMs;
      const bool own = call.caller.device == room.host || call.caller.device == room.creator;
      if (!silent && !own) {
        return refusal(409, "conflict", "the room's host was heard of less than 40 s ago");
      }
      TANDEM_TRY(elect(connection, call.core, room.code, silent ? room.host : ""));
      TANDEM_ASSIGN(const auto after, find_room(connection, room.code));
      return reply({{"host", after.has_value() ? after->host : ""}});
    });
  });
}

Response room_events(Call& call) {
  const int64_t after = query_number(call.request, "after", 0, INT64_MAX);
  Response response = respond_reading(call.core, [&](Connection& connection) {
    return in_room(connection, call, false, [&](const RoomRow& room) {
      return read_events(connection, "room:" + room.code, after, call.caller.device);
    });
  });
  response.caller = call.caller.device;
  return response;
}

Response publish(Call& call) {
  const auto kind = text_field(call.body, "kind", 32);
  const bool addressed = call.body.is_object() && call.body.contains("to");
  const auto to = text_field(call.body, "to", 64);
  if (!kind || !call.body.contains("data") || (addressed && !to)) {
    return refusal(400, "invalid",
                   "expected kind (up to 32 bytes), data, and to (a device) or not");
  }
  const std::string data = dump(call.body["data"]);
  if (data.size() > kMaxEvent) return refusal(413, "invalid", "data has more than 65536 bytes");
  return respond(call.core, [&](Connection& connection) {
    return in_room(connection, call, false, [&](const RoomRow& room) -> Result<Response> {
      if (addressed) {
        TANDEM_ASSIGN(const std::string state, member_state(connection, room.code, *to));
        if (state != "in") return refusal(404, "not_found", "that device is not in the room");
      }
      // "message:" keeps members from speaking in the hub's own name.
      TANDEM_TRY(add_event(connection, "room:" + room.code, "message:" + *kind, call.caller.device,
                           addressed ? *to : "", call.body["data"]));
      TANDEM_TRY(connection.run("UPDATE rooms SET touched = $1 WHERE code = $2 AND touched < $3",
                                {now_ms(), room.code, now_ms() - 60000}));
      return nothing();
    });
  });
}

}  // namespace tandem::hub
