// Organizations: members with roles, their API keys. Owners make members of every role, admins make
// plain ones; members see.
#include "hub/secret.h"
#include "hub/server/core.h"

namespace tandem::hub {
namespace {

constexpr size_t kMaxName = 64;
constexpr int64_t kMaxMembers = 1000;
constexpr int64_t kMaxKeys = 16;

struct NewMember {
  std::string id = make_token();
  std::string key = make_token();
};

Status insert(Connection& connection, const NewMember& member, const std::string& organization,
              const std::string& name, const std::string& role) {
  TANDEM_TRY(
      connection.run("INSERT INTO members (id, organization, name, role, created) VALUES "
                     "($1, $2, $3, $4, $5)",
                     {member.id, organization, name, role, now_ms()}));
  TANDEM_TRY(
      connection.run("INSERT INTO api_keys (id, member, name, key_hash, created) VALUES "
                     "($1, $2, 'first', $3, $4)",
                     {make_token(), member.id, token_hash(member.key), now_ms()}));
  return {};
}

Response only(const char* who) {
  return refusal(403, "forbidden", std::string("that is for ") + who);
}

}  // namespace

Response create_organization(Call& call) {
  if (const int64_t wait = call.core.registrations.take(call.request.address); wait > 0) {
    return too_many("too many requests from this address", wait);
  }
  const auto name = text_field(call.body, "name", kMaxName);
  const auto owner = text_field(call.body, "member", kMaxName);
  if (!name || !owner)
    return refusal(400, "invalid", "expected name, and member: its owner's name");
  const std::string id = make_token();
  const NewMember member;
  return respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_TRY(connection.run("INSERT INTO organizations (id, name, created) VALUES ($1, $2, $3)",
                              {id, *name, now_ms()}));
    TANDEM_TRY(insert(connection, member, id, *owner, "owner"));
    return reply({{"organization", id}, {"member", member.id}, {"key", member.key}}, 201);
  });
}

Response show_organization(Call& call) {
  const std::string& id = call.caller.organization;
  if (id.empty()) return refusal(404, "not_found", "this device belongs to no organization");
  return respond_reading(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_ASSIGN(const Rows rows,
                  connection.run("SELECT name FROM organizations WHERE id = $1", {id}));
    TANDEM_ASSIGN(const Rows members,
                  connection.run("SELECT id, name, role FROM members WHERE organization = $1 ORDER "
                                 "BY created, id",
                                 {id}));
    TANDEM_ASSIGN(const Rows devices,
                  connection.run("SELECT count(*) FROM devices WHERE organization = $1", {id}));
    TANDEM_ASSIGN(const Rows files, connection.run("SELECT COALESCE(SUM(size), 0) FROM files WHERE "
                                                   "organization = $1",
                                                   {id}));
    Json list = Json::array();
    for (const Row& row : members) {
      Json member{
          {"member", text_of(row, 0)}, {"name", text_of(row, 1)}, {"role", text_of(row, 2)}};
      TANDEM_ASSIGN(const Rows keys,
                    connection.run("SELECT id, name, created FROM api_keys WHERE member = $1 ORDER "
                                   "BY created, id",
                                   {text_of(row, 0)}));
      if (call.caller.manages() || call.caller.member == text_of(row, 0)) {
        member["keys"] = Json::array();
        for (const Row& key : keys) {
          member["keys"].push_back({{"key", text_of(key, 0)},
                                    {"name", text_of(key, 1)},
                                    {"created", number_of(key, 2)}});
        }
      }
      list.push_back(member);
    }
    return reply({{"organization", id},
                  {"name", rows.empty() ? "" : text_of(rows[0], 0)},
                  {"members", list},
                  {"devices", number_of(devices.at(0), 0)},
                  {"file_bytes", number_of(files.at(0), 0)}});
  });
}

Response add_member(Call& call) {
  const auto name = text_field(call.body, "name", kMaxName);
  const std::string role = text_field(call.body, "role", 16).value_or("member");
  if (!name || (role != "owner" && role != "admin" && role != "member")) {
    return refusal(400, "invalid", "expected name and role (owner, admin or member)");
  }
  if (!call.caller.manages()) return only("owners and admins");
  if (role != "member" && call.caller.role != "owner") return only("owners");
  const NewMember member;
  return respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_ASSIGN(const Rows rows,
                  connection.run("SELECT count(*) FROM members WHERE organization = $1",
                                 {call.caller.organization}));
    if (number_of(rows.at(0), 0) >= kMaxMembers) {
      return refusal(409, "conflict", "the organization has 1000 members");
    }
    TANDEM_TRY(insert(connection, member, call.caller.organization, *name, role));
    return reply({{"member", member.id}, {"key", member.key}, {"role", role}}, 201);
  });
}

Response remove_member(Call& call) {
  const std::string id = call.request.path.at(3);
  if (!call.caller.manages()) return only("owners and admins");
  Response response = respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_ASSIGN(const Rows rows,
                  connection.run("SELECT role FROM members WHERE id = $1 AND organization = $2",
                                 {id, call.caller.organization}));
    if (rows.empty()) return refusal(404, "not_found", "there is no such member");
    const std::string role = text_of(rows[0], 0);
    if (role != "member" && call.caller.role != "owner") return only("owners");
    TANDEM_ASSIGN(const Rows owners,
                  connection.run("SELECT count(*) FROM members WHERE organization = $1 AND role = "
                                 "'owner'",
                                 {call.caller.organization}));
    if (role == "owner" && number_of(owners.at(0), 0) == 1) {
      return refusal(409, "conflict", "an organization keeps at least one owner");
    }
    TANDEM_TRY(connection.run("DELETE FROM api_keys WHERE member = $1", {id}));
    TANDEM_TRY(connection.run("DELETE FROM members WHERE id = $1", {id}));
    TANDEM_TRY(connection.notify("member:" + id));
    return nothing();
  });
  call.core.callers.forget(id);
  return response;
}

Response add_key(Call& call) {
  const auto name = text_field(call.body, "name", kMaxName);
  if (!name) return refusal(400, "invalid", "expected name");
  if (call.caller.member.empty()) return only("members");
  const std::string key = make_token();
  const std::string id = make_token();
  return respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_ASSIGN(const Rows rows, connection.run("SELECT count(*) FROM api_keys WHERE member = $1",
                                                  {call.caller.member}));
    if (number_of(rows.at(0), 0) >= kMaxKeys) {
      return refusal(409, "conflict", "a member has 16 keys at most; remove one first");
    }
    TANDEM_TRY(
        connection.run("INSERT INTO api_keys (id, member, name, key_hash, created) VALUES "
                       "($1, $2, $3, $4, $5)",
                       {id, call.caller.member, *name, token_hash(key), now_ms()}));
    return reply({{"id", id}, {"key", key}}, 201);
  });
}

Response remove_key(Call& call) {
  const std::string id = call.request.path.at(3);
  if (call.caller.member.empty()) return only("members");
  Response response = respond(call.core, [&](Connection& connection) -> Result<Response> {
    TANDEM_TRY(connection.run("DELETE FROM api_keys WHERE id = $1 AND member = $2",
                              {id, call.caller.member}));
    if (connection.changes() == 0)
      return refusal(404, "not_found", "there is no such key of yours");
    TANDEM_TRY(connection.notify("member:" + call.caller.member));
    return nothing();
  });
  call.core.callers.forget(call.caller.member);
  return response;
}

}  // namespace tandem::hub
