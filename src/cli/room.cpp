// tandem room create: a room for others to join.
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/hub_access.h"
#include "cli/output.h"
#include "cli/session.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;

struct Created {
  std::string code;
  std::string link;
  std::string hub;
};

Result<Created> create(const std::string& address, const std::string& model, uint32_t context,
                       const std::string& objective) {
  // The model first: a room for one that can't be run here would be of no use.
  TANDEM_ASSIGN(const Model opened, Model::open(model));
  const std::filesystem::path path = opened.checkpoint->folder();
  const uint32_t most = opened.config.context;
  if (context > most) {
    return invalid("--context is " + std::to_string(context) + "; the model has " +
                   std::to_string(most) + " positions");
  }
  Json spec{{"model", path.filename().string()},
            {"architecture", opened.config.architecture},
            {"layers", opened.config.layers},
            {"hidden_size", opened.config.hidden_size},
            {"context", context == 0 ? std::min<uint32_t>(most, 4096) : context},
            {"objective", objective}};
  if (const auto manifest = weights::known_manifest(*opened.checkpoint)) {
    spec["model_hash"] = hex(weights::model_hash(*manifest));
  }
  TANDEM_ASSIGN(HubAccess access, open_hub(address, ""));
  hub::RoomLink link;
  TANDEM_ASSIGN(const Json room, access.client.create_room(spec, link.key));
  if (!room.contains("code") || !room["code"].is_string()) {
    return invalid("the hub sent no room's code");
  }
  link.code = room["code"].get<std::string>();
  link.hub = access.client.hub();
  TANDEM_TRY(access.home.remember_room(link.hub, link.code, {link.key, ""}));
  return Created{link.code, link.text(), link.hub.text()};
}

}  // namespace

int room_command(Arguments arguments) {
  std::string address;
  std::string model;
  std::string objective = "fastest";
  uint32_t context = 0;
  bool json = false;
  std::optional<std::string> action;
  Flags flags("room", "create --hub URL [FLAGS]",
              "Makes a room at a hub, with this device as its host, and prints its code and its\n"
              "link. Whoever has the link may join; whoever has the code alone has to be let in.");
  flags.add_positional("create", action, "the one thing that this command does", true);
  flags.add("--hub", "URL", address, kHubHelp);
  flags.add("-m,--model", "PATH", model,
            "model that the room runs (default: $TANDEM_MODEL or models/storyteller)");
  flags.add("--context", "N", context, 0, UINT32_MAX,
            "positions of a conversation (default: 4096, or what the model has)");
  flags.add_choice("--objective", "WHAT", objective, {"fastest", "throughput", "memory"},
                   "what the split of layers is best at (default: fastest)");
  flags.add("--json", json, "one JSON object with code, link and hub");
  flags.add_example("tandem room create --hub https://127.0.0.1:7443 -m ~/models/Qwen3-4B");
  if (const auto code = flags.parse(arguments)) return *code;
  if (*action != "create") {
    return flags.wrong_use("expected 'create', found '" + *action + "'");
  }
  const auto created = create(address, model, context, objective);
  if (!created.ok()) return fail("room", created.error(), json);
  if (json) {
    write_out(Json{{"code", created->code}, {"link", created->link}, {"hub", created->hub}}.dump() +
              "\n");
  } else {
    write_out("code " + created->code + "\nlink " + created->link + "\n");
  }
  return kSuccess;
}

}  // namespace tandem::cli
