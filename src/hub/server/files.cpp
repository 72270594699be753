// Small files for jobs: 4 MiB each, 256 MiB an organization, gone after a week. A device without an
// organization has 32 MiB of its own, of which every other such device that knows a file's random
// id may read that file.
#include "hub/secret.h"
#include "hub/server/core.h"
#include "hub/server/rooms.h"

namespace tandem::hub {
namespace {

constexpr int64_t kMaxOrganizationBytes = int64_t{256} << 20;
constexpr int64_t kMaxDeviceBytes = int64_t{32} << 20;  ///< of a device without an organization
constexpr int64_t kWeekMs = int64_t{7} * 24 * 3600 * 1000;
constexpr int64_t kOldRoomMs = int64_t{30} * 24 * 3600 * 1000;
constexpr int64_t kOldAskMs = int64_t{3600} * 1000;
constexpr int64_t kUnusedDeviceMs = int64_t{24} * 3600 * 1000;
constexpr int64_t kOldJobMs = int64_t{24} * 3600 * 1000;

/// Whose files these are: the organization's, or of a device without one its own, of which others
/// like it may read what they know the id of.
std::string owner_of(const Caller& caller) {
  return caller.organization.empty() ? "device:" + caller.device : caller.organization;
}

}  // namespace

Response put_file(Call& call) {
  const std::string& data = call.request.body;
  if (data.empty()) return refusal(400, "invalid", "expected the file's bytes as the body");
  const auto size = static_cast<int64_t>(data.size());
  const std::string sha256_text = hex(sha256(data));
  const std::string id = make_token();
  return respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_TRY(connection.run("DELETE FROM files WHERE created < $1", {now_ms() - kWeekMs}));
    TANDEM_ASSIGN(const Rows rows,
                  connection.run("SELECT COALESCE(SUM(size), 0) FROM files WHERE organization = $1",
                                 {owner_of(call.caller)}));
    const int64_t used = number_of(rows.at(0), 0);
    const bool alone = call.caller.organization.empty();
    const int64_t most = alone ? kMaxDeviceBytes : kMaxOrganizationBytes;
    if (used + size > most) {
      return refusal(413, "memory",
                     std::string(alone ? "the device's" : "the organization's") + " files have " +
                         std::to_string(used) + " bytes; " + std::to_string(most) + " is the most");
    }
    const int64_t now = now_ms();
    TANDEM_TRY(
        connection.run("INSERT INTO files (id, organization, size, sha256, created, data) "
                       "VALUES ($1, $2, $3, $4, $5, $6)",
                       {id, owner_of(call.caller), size, sha256_text, now, Blob{data}}));
    return reply({{"file", id}, {"size", size}, {"sha256", sha256_text}, {"until", now + kWeekMs}},
                 201);
  });
}

Response get_file(Call& call) {
  return respond_reading(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_ASSIGN(
        Rows rows,
        connection.run("SELECT data, sha256 FROM files WHERE id = $1 AND "
                       "(organization = $2 OR ($2 LIKE 'device:%' AND organization "
                       "LIKE 'device:%')) AND created >= $3",
                       {call.request.path.at(2), owner_of(call.caller), now_ms() - kWeekMs}));
    if (rows.empty()) return refusal(404, "not_found", "there is no such file");
    Response response;
    response.content_type = "application/octet-stream";
    response.fields.emplace_back("ETag", "\"" + text_of(rows[0], 1) + "\"");
    if (auto* blob = std::get_if<Blob>(&rows[0][0])) response.body = std::move(blob->bytes);
    return response;
  });
}

Response remove_file(Call& call) {
  return respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_TRY(connection.run("DELETE FROM files WHERE id = $1 AND organization = $2",
                              {call.request.path.at(2), owner_of(call.caller)}));
    if (connection.changes() == 0) return refusal(404, "not_found", "there is no such file");
    return nothing();
  });
}

Status remove_old(Core& core) {
  const int64_t now = now_ms();
  return core.database->transaction([&](Connection& connection) -> Status {
    TANDEM_TRY(connection.run("DELETE FROM challenges WHERE until < $1", {now}));
    TANDEM_TRY(connection.run("DELETE FROM files WHERE created < $1", {now - kWeekMs}));
    TANDEM_TRY(
        connection.run("DELETE FROM jobs WHERE finished > 0 AND finished < $1", {now - kOldJobMs}));
    TANDEM_TRY(connection.run(
        "DELETE FROM room_members WHERE state IN ('waiting', 'allowed', 'denied') AND joined < $1",
        {now - kOldAskMs}));
    // Registered, and never heard of since nor made part of anything: somebody's flood, or a try.
    TANDEM_TRY(connection.run(
        "DELETE FROM devices WHERE organization = '' AND seen = created AND settings_version = 1 "
        "AND created < $1 AND id NOT IN (SELECT device FROM room_members) AND id NOT IN (SELECT "
        "creator FROM rooms)",
        {now - kUnusedDeviceMs}));
    TANDEM_ASSIGN(const Rows rooms,
                  connection.run("SELECT code FROM rooms WHERE touched < $1", {now - kOldRoomMs}));
    for (const Row& row : rooms) TANDEM_TRY(remove_room(connection, text_of(row, 0)));
    TANDEM_TRY(
        connection.run("DELETE FROM scopes WHERE scope LIKE 'room:%' AND scope NOT IN "
                       "(SELECT 'room:' || code FROM rooms)",
                       {}));
    return {};
  });
}

}  // namespace tandem::hub
