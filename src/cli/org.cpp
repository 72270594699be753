// tandem org: an organization at a hub, its members, their keys, and this device's place in it.
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/hub_access.h"
#include "cli/output.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;

struct Wanted {
  std::string address;
  std::string key;
  std::string member;
  std::string role = "member";
  std::string add;
  std::string remove;
};

std::string text_of(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : "";
}

/// Names come from others: nothing of them may move a terminal's cursor.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text;
}

Result<Json> create(const Wanted& wanted, const std::string& name) {
  TANDEM_ASSIGN(HubAccess access, open_hub(wanted.address, ""));
  const std::string member = wanted.member.empty() ? machine_name() : wanted.member;
  return access.client.call("POST", "/v1/organizations", {{"name", name}, {"member", member}});
}

/// Puts this device into the organization of the key.
Result<Json> join(const Wanted& wanted) {
  TANDEM_ASSIGN(HubAccess access, open_hub(wanted.address, ""));
  TANDEM_ASSIGN(const std::string key, secret_argument(wanted.key));
  TANDEM_ASSIGN(hub::Client client, access.home.connect(access.client.hub(), machine_name(), key));
  TANDEM_ASSIGN(const Json device, client.device("me"));
  return Json{{"device", text_of(device, "device")},
              {"organization", text_of(device, "organization")}};
}

Result<Json> change(const Wanted& wanted, const std::string& action, const std::string& name) {
  TANDEM_ASSIGN(HubAccess access, open_hub(wanted.address, wanted.key));
  hub::Client& client = access.client;
  if (action == "invite") {
    return client.call("POST", "/v1/organization/members", {{"name", name}, {"role", wanted.role}});
  }
  if (action == "remove") {
    TANDEM_TRY(client.call("DELETE", "/v1/organization/members/" + hub::escape(name), nullptr));
    return Json{{"removed", name}};
  }
  if (action == "keys" && !wanted.add.empty()) {
    return client.call("POST", "/v1/organization/keys", {{"name", wanted.add}});
  }
  if (action == "keys" && !wanted.remove.empty()) {
    TANDEM_TRY(
        client.call("DELETE", "/v1/organization/keys/" + hub::escape(wanted.remove), nullptr));
    return Json{{"removed", wanted.remove}};
  }
  return client.call("GET", "/v1/organization", nullptr);
}

std::string members_table(const Json& organization) {
  std::vector<std::vector<std::string>> rows{{"name", "role", "keys", "member"}};
  if (!organization.contains("members")) return "";
  for (const Json& member : organization["members"]) {
    if (!member.is_object()) continue;
    rows.push_back({printable(text_of(member, "name")), printable(text_of(member, "role")),
                    member.contains("keys") ? std::to_string(member["keys"].size()) : "",
                    printable(text_of(member, "member"))});
  }
  return printable(text_of(organization, "name")) + "\n" + table(rows, {false, false, true, false});
}

std::string keys_table(const Json& organization) {
  std::vector<std::vector<std::string>> rows{{"member", "name", "key"}};
  if (!organization.contains("members")) return "";
  for (const Json& member : organization["members"]) {
    if (!member.is_object() || !member.contains("keys")) continue;
    for (const Json& key : member["keys"]) {
      rows.push_back({printable(text_of(member, "name")), printable(text_of(key, "name")),
                      printable(text_of(key, "key"))});
    }
  }
  return table(rows, {false, false, false});
}

std::string lines_of(const Json& answer) {
  std::string text;
  for (const auto& [name, value] : answer.items()) {
    text +=
        name + " " + printable(value.is_string() ? value.get<std::string>() : value.dump()) + "\n";
  }
  return text;
}

}  // namespace

int org_command(Arguments arguments) {
  Wanted wanted;
  bool json = false;
  std::optional<std::string> action;
  std::optional<std::string> name;
  Flags flags(
      "org", "create|members|invite|remove|keys|join [NAME] [FLAGS]",
      "Organizations share devices at a hub. 'create NAME' makes one and prints its owner's key,\n"
      "'invite NAME' a member, whose key it prints, 'remove MEMBER' takes one out (see "
      "'members'),\n"
      "'keys' lists keys, 'join' puts this device into the organization of --key. Keys are shown\n"
      "once: keep them like passwords.");
  flags.add_positional("ACTION", action, "create, members, invite, remove, keys or join", true);
  flags.add_positional("NAME", name, "of the organization or member; of 'remove' a member's id",
                       false);
  flags.add("--hub", "URL", wanted.address, kHubHelp);
  flags.add("--key", "@FILE", wanted.key, "a member's key; '-' reads standard input");
  flags.add("--member", "NAME", wanted.member,
            "'create': the owner's name (default: this machine's)");
  flags.add_choice("--role", "ROLE", wanted.role, {"member", "admin", "owner"},
                   "'invite': what the member may do (default: member)");
  flags.add("--add", "NAME", wanted.add, "'keys': make another key of one's own, and print it");
  flags.add("--remove", "ID", wanted.remove, "'keys': void a key of one's own");
  flags.add("--json", json, "one JSON object, as the hub answers (docs/api.md)");
  flags.add_example("tandem org create 'Our school' --hub https://hub.example.org --member Ann");
  flags.add_example("tandem org invite Ben --key @ann.key");
  flags.add_example("tandem org join --key @ben.key");
  if (const auto code = flags.parse(arguments)) return *code;
  const std::vector<std::string> actions{"create", "members", "invite", "remove", "keys", "join"};
  if (std::find(actions.begin(), actions.end(), *action) == actions.end()) {
    return flags.wrong_use("expected create, members, invite, remove, keys or join, found '" +
                           *action + "'");
  }
  const bool named = *action == "create" || *action == "invite" || *action == "remove";
  if (named != name.has_value()) {
    return flags.wrong_use("'" + *action + "' takes " + (named ? "a NAME" : "no NAME"));
  }
  if (*action == "join" && wanted.key.empty()) return flags.wrong_use("'join' needs --key");
  const auto answer = *action == "create" ? create(wanted, *name)
                      : *action == "join" ? join(wanted)
                                          : change(wanted, *action, name.value_or(""));
  if (!answer.ok()) return fail("org", answer.error(), json);
  if (json) {
    write_out(answer->dump() + "\n");
  } else if (*action == "members") {
    write_out(members_table(*answer));
  } else if (*action == "keys" && wanted.add.empty() && wanted.remove.empty()) {
    write_out(keys_table(*answer));
  } else {
    write_out(lines_of(*answer));
  }
  return kSuccess;
}

}  // namespace tandem::cli
