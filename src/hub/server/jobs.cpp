// Jobs: addressed to a device, leased, renewed, expired, tried at most three times. Each lease has
// a token from one counter that only rises; whoever comes with an older one can do nothing.
#include "hub/secret.h"
#include "hub/server/core.h"
#include "hub/server/rooms.h"
#include "hub/settings.h"

namespace tandem::hub {
namespace {

constexpr int64_t kMaxAttempts = 3;
constexpr int64_t kMaxQueued = 64;  ///< of one device
constexpr int64_t kKeptJobs = 256;  ///< of a room, once they are over
constexpr size_t kMaxData = 262144;
constexpr int64_t kMaxLeaseMs = 600000;

constexpr const char* kColumns =
    "SELECT id, room, device, submitter, kind, data, state, attempts, token, lease_until, result, "
    "created, finished FROM jobs ";

Json job_json(const Row& row, bool with_data) {
  Json job{{"job", text_of(row, 0)},        {"room", text_of(row, 1)},
           {"device", text_of(row, 2)},     {"submitter", text_of(row, 3)},
           {"kind", text_of(row, 4)},       {"state", text_of(row, 6)},
           {"attempts", number_of(row, 7)}, {"lease_until", number_of(row, 9)},
           {"created", number_of(row, 11)}, {"finished", number_of(row, 12)}};
  const Json result = parse_json(text_of(row, 10));
  if (!result.is_null()) job["result"] = result;
  if (with_data) job["data"] = parse_json(text_of(row, 5));
  return job;
}

Status tell(Connection& connection, const Row& job, const char* state) {
  return add_event(connection, "device:" + text_of(job, 3), "job", text_of(job, 2), "",
                   {{"job", text_of(job, 0)}, {"kind", text_of(job, 4)}, {"state", state}});
}

/// Puts leased jobs whose time is over back into the queue, or gives them up.
Status expire(Connection& connection, const std::string& device) {
  TANDEM_ASSIGN(const Rows rows,
                connection.run(std::string(kColumns) +
                                   "WHERE state = 'leased' AND lease_until < $1 AND (device = $2 "
                                   "OR $2 = '')",
                               {now_ms(), device}));
  for (const Row& row : rows) {
    const bool again = number_of(row, 7) < kMaxAttempts;
    const std::string id = text_of(row, 0);
    if (again) {
      TANDEM_TRY(connection.run("UPDATE jobs SET state = 'queued' WHERE id = $1", {id}));
      TANDEM_TRY(add_event(connection, "device:" + text_of(row, 2), "job_waits", "", "",
                           {{"job", id}, {"kind", text_of(row, 4)}}));
    } else {
      TANDEM_TRY(connection.run(
          "UPDATE jobs SET state = 'failed', result = $1, finished = $2, data = '' WHERE id = $3",
          {dump({{"error", "its lease ended three times without a result"}}), now_ms(), id}));
      TANDEM_TRY(tell(connection, row, "failed"));
    }
  }
  return {};
}

/// The job of the path, with the lease that the body's token stands for, if it still holds.
Result<Response> with_lease(Connection& connection, const Call& call,
                            const std::function<Result<Response>(const Row&)>& work) {
  const Json* token =
      call.body.is_object() && call.body.contains("token") ? &call.body["token"] : nullptr;
  if (token == nullptr || !token->is_number_integer()) {
    return refusal(400, "invalid", "expected token, the number that came with the lease");
  }
  TANDEM_TRY(expire(connection, call.caller.device));
  TANDEM_ASSIGN(const Rows rows,
                connection.run(std::string(kColumns) + "WHERE id = $1 AND device = $2",
                               {call.request.path.at(2), call.caller.device}));
  if (rows.empty()) return refusal(404, "not_found", "there is no such job for this device");
  if (text_of(rows[0], 6) != "leased" || number_of(rows[0], 8) != token->get<int64_t>()) {
    return refusal(409, "stale",
                   "the lease is over: the job is " + text_of(rows[0], 6) +
                       (text_of(rows[0], 6) == "leased" ? " by another holder" : ""));
  }
  return work(rows[0]);
}

Result<Response> show(Connection& connection, const Call& call,
                      const std::function<Result<Response>(const Row&)>& work) {
  TANDEM_ASSIGN(const Rows rows,
                connection.run(std::string(kColumns) + "WHERE id = $1 AND "
                                                       "(submitter = $2 OR device = $2)",
                               {call.request.path.at(2), call.caller.device}));
  if (rows.empty()) return refusal(404, "not_found", "there is no such job of this device");
  return work(rows[0]);
}

int64_t lease_ms(const Call& call) {
  if (call.body.is_object() && call.body.contains("lease_ms") &&
      call.body["lease_ms"].is_number_unsigned()) {
    const auto asked = call.body["lease_ms"].get<uint64_t>();
    if (asked >= 1000 && asked <= static_cast<uint64_t>(kMaxLeaseMs)) {
      return static_cast<int64_t>(asked);
    }
  }
  return call.core.options.lease_ms;
}

}  // namespace

Response add_job(Call& call) {
  const auto device = text_field(call.body, "device", 64);
  const auto kind = text_field(call.body, "kind", 16);
  if (!device || !kind || (*kind != "probe" && *kind != "stage") || !call.body.contains("data")) {
    return refusal(400, "invalid", "expected device, kind (probe or stage) and data");
  }
  const std::string data = dump(call.body["data"]);
  if (data.size() > kMaxData) return refusal(413, "invalid", "data has more than 262144 bytes");
  return respond(call.core, [&](Connection& connection) {
    return in_room(connection, call, true, [&](const RoomRow& room) -> Result<Response> {
      TANDEM_ASSIGN(const std::string state, member_state(connection, room.code, *device));
      if (state != "in") return refusal(404, "not_found", "that device is not in the room");
      TANDEM_ASSIGN(const Rows queued,
                    connection.run("SELECT count(*) FROM jobs WHERE device = $1 AND state IN "
                                   "('queued', 'leased')",
                                   {*device}));
      if (number_of(queued.at(0), 0) >= kMaxQueued) {
        return too_many("64 jobs wait for that device already", 15);
      }
      TANDEM_TRY(connection.run(
          "DELETE FROM jobs WHERE room = $1 AND finished > 0 AND id NOT IN (SELECT id FROM jobs "
          "WHERE room = $1 AND finished > 0 ORDER BY finished DESC, id LIMIT $2)",
          {room.code, kKeptJobs}));
      const std::string id = make_token();
      TANDEM_TRY(connection.run(
          "INSERT INTO jobs (id, room, device, submitter, kind, data, state, attempts, token, "
          "lease_until, result, created, finished) VALUES ($1, $2, $3, $4, $5, $6, 'queued', 0, 0, "
          "0, '', $7, 0)",
          {id, room.code, *device, call.caller.device, *kind, data, now_ms()}));
      TANDEM_TRY(add_event(connection, "device:" + *device, "job_waits", call.caller.device, "",
                           {{"job", id}, {"kind", *kind}}));
      return reply({{"job", id}}, 201);
    });
  });
}

Response lease_job(Call& call) {
  const std::string& device = call.caller.device;
  const auto sighting = call.core.presence.find(device);
  const auto settings = parse_settings(dump(call.caller.settings));
  return respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_TRY(expire(connection, device));
    TANDEM_ASSIGN(const Rows rows,
                  connection.run(std::string(kColumns) + "WHERE device = $1 AND state = 'queued' "
                                                         "ORDER BY created, id",
                                 {device}));
    for (const Row& row : rows) {
      // What its owner does not lend it for stays in the queue until that changes.
      const Json report = sighting ? parse_json(sighting->report) : Json();
      Condition condition;
      if (report.is_object() && report.contains("battery") && report["battery"].is_number()) {
        condition.battery = report["battery"].get<double>();
      }
      if (report.is_object() && report.contains("temperature") &&
          report["temperature"].is_number()) {
        condition.temperature = report["temperature"].get<double>();
      }
      if (settings.ok() && !why_no_work(*settings, text_of(row, 4), condition, now_ms()).empty()) {
        continue;
      }
      TANDEM_ASSIGN(const Rows fence, connection.run("UPDATE counters SET value = value + 1 WHERE "
                                                     "name = 'fence' RETURNING value",
                                                     {}));
      const int64_t token = number_of(fence.at(0), 0);
      const int64_t until = now_ms() + lease_ms(call);
      TANDEM_TRY(
          connection.run("UPDATE jobs SET state = 'leased', attempts = attempts + 1, token "
                         "= $1, lease_until = $2 WHERE id = $3",
                         {token, until, text_of(row, 0)}));
      TANDEM_TRY(tell(connection, row, "leased"));
      Json job = job_json(row, true);
      job["state"] = "leased";
      job["attempts"] = number_of(row, 7) + 1;
      job["token"] = token;
      job["lease_until"] = until;
      return reply(job);
    }
    return nothing();
  });
}

Response show_job(Call& call) {
  return respond_reading(call.core, [&](Connection& connection) -> Result<Response> {
    return show(connection, call,
                [&](const Row& row) -> Result<Response> { return reply(job_json(row, false)); });
  });
}

Response renew_job(Call& call) {
  return respond(call.core, [&](Connection& connection) {
    return with_lease(connection, call, [&](const Row& row) -> Result<Response> {
      const int64_t until = now_ms() + lease_ms(call);
      TANDEM_TRY(connection.run("UPDATE jobs SET lease_until = $1 WHERE id = $2",
                                {until, text_of(row, 0)}));
      return reply({{"lease_until", until}});
    });
  });
}

Response finish_job(Call& call) {
  const auto state = text_field(call.body, "state", 16);
  if (!state || (*state != "done" && *state != "failed") || !call.body.contains("result")) {
    return refusal(400, "invalid", "expected token, state (done or failed) and result");
  }
  const std::string result = dump(call.body["result"]);
  if (result.size() > kMaxData) return refusal(413, "invalid", "result has more than 262144 bytes");
  return respond(call.core, [&](Connection& connection) {
    return with_lease(connection, call, [&](const Row& row) -> Result<Response> {
      TANDEM_TRY(connection.run(
          "UPDATE jobs SET state = $1, result = $2, finished = $3, data = '' WHERE id = $4",
          {*state, result, now_ms(), text_of(row, 0)}));
      TANDEM_TRY(tell(connection, row, state->c_str()));
      return nothing();
    });
  });
}

Response cancel_job(Call& call) {
  return respond(call.core, [&](Connection& connection) {
    return show(connection, call, [&](const Row& row) -> Result<Response> {
      if (text_of(row, 3) != call.caller.device) {
        return refusal(403, "forbidden", "only who submitted a job cancels it");
      }
      if (text_of(row, 6) == "queued" || text_of(row, 6) == "leased") {
        TANDEM_TRY(connection.run(
            "UPDATE jobs SET state = 'cancelled', finished = $1, data = '' WHERE id = $2",
            {now_ms(), text_of(row, 0)}));
        TANDEM_TRY(add_event(connection, "device:" + text_of(row, 2), "job_cancelled",
                             call.caller.device, "", {{"job", text_of(row, 0)}}));
      }
      return nothing();
    });
  });
}

Status expire_jobs(Core& core) {
  // Looked for first, so that nothing is written where nothing is to be.
  bool any = false;
  TANDEM_TRY(core.database->reading([&](Connection& connection) -> Status {
    TANDEM_ASSIGN(const Rows rows,
                  connection.run("SELECT id FROM jobs WHERE state = 'leased' AND lease_until < $1 "
                                 "LIMIT 1",
                                 {now_ms()}));
    any = !rows.empty();
    return {};
  }));
  if (!any) return {};
  return core.database->transaction([&](Connection& connection) { return expire(connection, ""); });
}

}  // namespace tandem::hub
