// Devices: registration, heartbeats, owner's settings.
#include <algorithm>

#include "hub/identity.h"
#include "hub/secret.h"
#include "hub/server/core.h"
#include "hub/settings.h"

namespace tandem::hub {
namespace {

constexpr int64_t kChallengeMs = 60000;
constexpr size_t kMaxName = 64;
constexpr size_t kMaxReport = 2048;
constexpr int64_t kMaxListed = 10000;
constexpr int64_t kSilentMs = 45000;  ///< three heartbeats
constexpr size_t kFlushAtOnce = 100;

Response rate_limited(int64_t seconds) {
  return too_many("too many requests from this address", seconds);
}

Condition condition_of(const Json& report) {
  Condition condition;
  if (!report.is_object()) return condition;
  if (const auto at = report.find("battery"); at != report.end() && at->is_number()) {
    condition.battery = at->get<double>();
  }
  if (const auto at = report.find("temperature"); at != report.end() && at->is_number()) {
    condition.temperature = at->get<double>();
  }
  return condition;
}

constexpr const char* kColumns =
    "SELECT id, name, kind, public_key, certificate, organization, settings, settings_version, "
    "created, seen, report FROM devices ";

Json device_json(const Core& core, const Row& row) {
  const std::string id = text_of(row, 0);
  const Sighting sighting = last_sighting(core, id, number_of(row, 9), text_of(row, 10));
  const Json report = parse_json(sighting.report);
  const int64_t now = now_ms();
  const std::string settings = text_of(row, 6);
  std::string why = now - sighting.seen > kSilentMs ? "not heard of" : "";
  if (const auto parsed = parse_settings(settings); why.empty() && parsed.ok()) {
    why = why_no_work(*parsed, "stage", condition_of(report), now);
  }
  return {{"device", id},
          {"name", text_of(row, 1)},
          {"kind", text_of(row, 2)},
          {"public_key", text_of(row, 3)},
          {"certificate", text_of(row, 4)},
          {"organization", text_of(row, 5)},
          {"settings", parse_json(settings)},
          {"settings_version", number_of(row, 7)},
          {"created", number_of(row, 8)},
          {"seen", sighting.seen},
          {"report", report},
          {"takes_work", why.empty()},
          {"why", why}};
}

/// Whether the caller may see (or, with `change`, alter) a device of that organization.
bool allowed(const Caller& caller, const Row& row, bool change) {
  if (caller.device == text_of(row, 0)) return true;
  const std::string organization = text_of(row, 5);
  if (organization.empty() || organization != caller.organization) return false;
  return !change || caller.manages();
}

/// The device that the path names, "me" being the caller's own; a refusal if there is none that the
/// caller may see.
Result<Response> with_device(Connection& connection, const Call& call, bool change,
                             const std::function<Result<Response>(const Row&)>& work) {
  const std::string& named = call.request.path.at(2);
  const std::string id = named == "me" ? call.caller.device : named;
  TANDEM_ASSIGN(const Rows rows, connection.run(std::string(kColumns) + "WHERE id = $1", {id}));
  if (rows.empty() || !allowed(call.caller, rows[0], false)) {
    return refusal(404, "not_found", "there is no such device");
  }
  if (!allowed(call.caller, rows[0], change)) {
    return refusal(403, "forbidden",
                   "only the device itself or its organization's owners and "
                   "admins change it");
  }
  return work(rows[0]);
}

}  // namespace

Response challenge(Call& call) {
  // Devices that are known have a limit of their own: a flood of new ones keeps none from joining.
  const bool known = !call.caller.device.empty();
  if (const int64_t wait = known ? 0 : call.core.registrations.take(call.request.address);
      wait > 0) {
    return rate_limited(wait);
  }
  const std::string nonce = make_token();
  return respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_TRY(connection.run("INSERT INTO challenges (nonce, until) VALUES ($1, $2)",
                              {nonce, now_ms() + kChallengeMs}));
    return reply({{"nonce", nonce}});
  });
}

Response register_device(Call& call) {
  const auto name = text_field(call.body, "name", kMaxName);
  const auto kind = text_field(call.body, "kind", 16);
  const auto key_text = text_field(call.body, "public_key", 64);
  const auto certificate = text_field(call.body, "certificate", 64);
  const auto nonce = text_field(call.body, "nonce", 64);
  const auto signature_text = text_field(call.body, "signature", 128);
  Digest digest;
  if (!name || !kind || !key_text || !certificate || !nonce || !signature_text ||
      (*kind != "computer" && *kind != "phone" && *kind != "browser") ||
      !parse_hex(*certificate, digest)) {
    return refusal(400, "invalid",
                   "expected name, kind (computer, phone, browser), public_key, certificate, "
                   "nonce and signature");
  }
  const auto key = from_base64url(*key_text);
  const auto signature = from_base64url(*signature_text);
  // The certificate is signed too, so that nobody else's can be registered with the key.
  const std::string message = "tandem device " + *nonce + " " + *certificate;
  if (!key || !signature || !verify_signature(*key, message, *signature)) {
    return refusal(403, "forbidden", "the signature is not that of the device's key");
  }
  const std::string id = device_id(*key);
  const std::string token = make_token();
  // An organization's key in the request puts the device into it; without, it stays where it is.
  const std::string organization = call.caller.member.empty() ? "" : call.caller.organization;
  Response response = respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_TRY(connection.run("DELETE FROM challenges WHERE nonce = $1 AND until > $2",
                              {*nonce, now_ms()}));
    if (connection.changes() != 1) {
      return refusal(403, "forbidden", "the nonce is unknown, used or older than a minute");
    }
    TANDEM_ASSIGN(
        const Rows rows,
        connection.run(
            "INSERT INTO devices (id, name, kind, public_key, certificate, organization, "
            "token_hash, settings, settings_version, created, seen, report) VALUES ($1, $2, $3, "
            "$4, $5, $6, $7, $8, 1, $9, $9, '{}') ON CONFLICT (id) DO UPDATE SET name = "
            "excluded.name, kind = excluded.kind, certificate = excluded.certificate, token_hash = "
            "excluded.token_hash, organization = CASE WHEN excluded.organization = '' THEN "
            "devices.organization ELSE excluded.organization END RETURNING organization",
            {id, *name, *kind, *key_text, hex(digest), organization, token_hash(token),
             settings_json({}), now_ms()}));
    TANDEM_TRY(connection.notify("device:" + id));
    return reply({{"device", id}, {"token", token}, {"organization", text_of(rows.at(0), 0)}}, 201);
  });
  call.core.callers.forget(id);
  call.core.tell(response, "device_registered", id);
  return response;
}

Response heartbeat(Call& call) {
  if (!call.body.is_object())
    return refusal(400, "invalid", "expected an object: what is reported");
  std::string report = dump(call.body);
  if (report.size() > kMaxReport) {
    return refusal(413, "invalid", "the report has more than 2048 bytes");
  }
  const int64_t now = now_ms();
  call.core.presence.beat(call.caller.device, now, std::move(report));
  return reply({{"now", now},
                {"settings", call.caller.settings},
                {"settings_version", call.caller.settings_version}});
}

Response list_devices(Call& call) {
  return respond_reading(call.core, [&](Connection& connection) -> Result<Response> {
    Rows rows;
    if (call.caller.organization.empty()) {
      TANDEM_ASSIGN(rows,
                    connection.run(std::string(kColumns) + "WHERE id = $1", {call.caller.device}));
    } else {
      TANDEM_ASSIGN(
          rows, connection.run(
                    std::string(kColumns) + "WHERE organization = $1 ORDER BY created, id LIMIT $2",
                    {call.caller.organization, kMaxListed}));
    }
    Json devices = Json::array();
    for (const Row& row : rows) devices.push_back(device_json(call.core, row));
    return reply({{"devices", devices}});
  });
}

Response show_device(Call& call) {
  return respond_reading(call.core, [&](Connection& connection) -> Result<Response> {
    return with_device(connection, call, false, [&](const Row& row) -> Result<Response> {
      return reply(device_json(call.core, row));
    });
  });
}

Response change_settings(Call& call) {
  const auto settings = parse_settings(call.request.body);
  if (!settings.ok()) return refusal(400, "invalid", settings.error().message);
  std::string id;
  Response response = respond(call.core, [&](Connection& connection) -> Result<Response> {
    return with_device(connection, call, true, [&](const Row& row) -> Result<Response> {
      id = text_of(row, 0);
      const int64_t version = number_of(row, 7) + 1;
      TANDEM_TRY(
          connection.run("UPDATE devices SET settings = $1, settings_version = $2 WHERE id = $3",
                         {settings_json(*settings), version, id}));
      TANDEM_TRY(add_event(connection, "device:" + id, "settings",
                           call.caller.device + call.caller.member, "",
                           {{"settings_version", version}}));
      return reply(
          {{"settings", parse_json(settings_json(*settings))}, {"settings_version", version}});
    });
  });
  call.core.callers.forget(id);
  return response;
}

Response remove_device(Call& call) {
  std::string id;
  Response response = respond(call.core, [&](Connection& connection) -> Result<Response> {
    return with_device(connection, call, true, [&](const Row& row) -> Result<Response> {
      id = text_of(row, 0);
      TANDEM_ASSIGN(const Rows rooms,
                    connection.run("SELECT room FROM room_members WHERE device = $1", {id}));
      for (const Row& room : rooms) {
        TANDEM_TRY(add_event(connection, "room:" + text_of(room, 0), "left", id, "",
                             {{"device", id}, {"why", "removed"}}));
      }
      TANDEM_TRY(connection.run("DELETE FROM room_members WHERE device = $1", {id}));
      TANDEM_TRY(connection.run("DELETE FROM jobs WHERE device = $1", {id}));
      TANDEM_TRY(connection.run("DELETE FROM devices WHERE id = $1", {id}));
      TANDEM_TRY(connection.run("DELETE FROM events WHERE scope = $1", {"device:" + id}));
      TANDEM_TRY(connection.run("DELETE FROM scopes WHERE scope = $1", {"device:" + id}));
      TANDEM_TRY(connection.notify("device:" + id));
      return nothing();
    });
  });
  call.core.callers.forget(id);
  call.core.presence.forget(id);
  call.core.tell(response, "device_removed", id);
  return response;
}

Response device_events(Call& call) {
  const int64_t after = query_number(call.request, "after", 0, INT64_MAX);
  Response response = respond_reading(call.core, [&](Connection& connection) {
    return read_events(connection, "device:" + call.caller.device, after, call.caller.device);
  });
  response.caller = call.caller.device;
  return response;
}

Status flush_presence(Core& core) {
  for (;;) {
    const auto changed = core.presence.take_changed(kFlushAtOnce);
    if (changed.empty()) return {};
    // One statement: a round trip for each row would hold up all other transactions.
    std::string rows;
    std::vector<Value> values;
    for (const auto& [device, sighting] : changed) {
      const size_t first = values.size();
      rows += rows.empty() ? "(CAST($" : ", (CAST($";
      rows.append(std::to_string(first + 1)).append(" AS BIGINT), $");
      rows.append(std::to_string(first + 2)).append(", $");
      rows.append(std::to_string(first + 3)).append(")");
      values.insert(values.end(), {Value(sighting.seen), Value(sighting.report), Value(device)});
    }
    const std::string sql =
        "UPDATE devices SET seen = v.column1, report = v.column2 FROM (VALUES " + rows +
        ") AS v WHERE devices.id = v.column3 AND devices.seen < v.column1";
    const Status written = core.database->transaction([&](Connection& connection) -> Status {
      TANDEM_TRY(connection.run(sql, values));
      return {};
    });
    if (!written.ok()) return written.error();
  }
}

}  // namespace tandem::hub
