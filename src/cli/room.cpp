// tandem room: makes a room for others to join, shows one, and answers who asks. tandem join: gets
// into one.
#include <poll.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/hub_access.h"
#include "cli/output.h"
#include "cli/room_view.h"
#include "cli/session.h"
#include "fetch/source.h"
#include "room/entry.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;

struct RoomFlags {
  std::string action;  ///< "create", or what names a room
  std::string hub;
  std::string model;
  std::string objective = "fastest";
  std::string weights = "8";
  std::string kv = "16";
  std::string sources;
  uint32_t context = 0;
  std::string allow;
  std::string deny;
  bool close = false;
  bool no_spares = false;
  bool json = false;
};

struct Created {
  std::string code;
  std::string link;
  std::string hub;
};

Result<Created> create(const RoomFlags& flags) {
  const uint32_t context = flags.context;
  // The model first: a room for one that can't be run here would be of no use.
  TANDEM_ASSIGN(const Model opened, Model::open(flags.model));
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
            {"objective", flags.objective},
            {"weights", static_cast<int>(weight_bits(flags.weights))},
            {"kv", flags.kv == "8" ? 8 : 16}};
  if (!flags.sources.empty()) {
    TANDEM_ASSIGN(const auto kinds, fetch::parse_sources(flags.sources));
    spec["sources"] = Json::array();
    for (const fetch::SourceKind kind : kinds) spec["sources"].push_back(fetch::name(kind));
  }
  if (flags.no_spares) spec["spares"] = false;
  if (const auto manifest = weights::known_manifest(*opened.checkpoint)) {
    spec["model_hash"] = hex(weights::model_hash(*manifest));
  }
  TANDEM_ASSIGN(HubAccess access, open_hub(flags.hub, ""));
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

/// This user's device in a room.
struct Inside {
  hub::Home home;
  hub::Client client;
  room::Way way;
  room::Json room;
};

Result<Inside> go_inside(const std::string& given, const std::string& hub) {
  TANDEM_ASSIGN(std::string text, secret_argument(given));
  TANDEM_ASSIGN(hub::Home home, hub::Home::open(hub::Home::usual_folder()));
  room::Way way;
  if (hub.empty()) {
    TANDEM_ASSIGN(way, room::find_way(home, text));
  } else {
    TANDEM_ASSIGN(way.link.hub, hub::parse_hub(hub));
    TANDEM_ASSIGN(way.link.code, hub::parse_code(text));
    TANDEM_ASSIGN(const auto known, home.room(way.link.hub, way.link.code));
    way.link.key = known.key;
    way.pass = known.pass;
  }
  TANDEM_ASSIGN(hub::Client client, home.connect(way.link.hub, machine_name()));
  way.link.hub = client.hub();
  client.stop_on(&cancel_flag());
  room::EnterOptions options;
  options.role = "guest";
  options.cancel = &cancel_flag();
  options.waiting = [&] {
    note("waiting in the lobby of room " + way.link.code + " as device " +
         home.identity().device_id() + "\n");
  };
  TANDEM_ASSIGN(room::Json room, room::enter(home, client, way, options));
  return Inside{std::move(home), std::move(client), std::move(way), std::move(room)};
}

/// Who waits longest in the lobby; empty if nobody does.
std::string first_waiting(const room::Json& room) {
  const room::Json& lobby = room::part_of(room, "lobby");
  return lobby.is_array() && !lobby.empty() ? room::text_of(lobby[0], "device") : "";
}

/// Shows the room until Ctrl-C, and answers the lobby from the keyboard.
Status watch(Inside& inside) {
  constexpr int kEveryMs = 1000;
  std::string answer;
  while (!cancel_flag()) {
    auto now = inside.client.room(inside.way.link.code);
    if (now.ok()) {
      inside.room = std::move(*now);
    } else if (inside.client.status() == 404) {
      return now.error();
    }
    const std::string waiting = first_waiting(inside.room);
    std::string text = "\x1b[H\x1b[J" + room_text(inside.room);
    if (!now.ok()) text += now.error().message + "\n";
    if (!waiting.empty()) text += "Let " + waiting + " in? y or n, and Enter\n";
    if (!answer.empty()) text += answer + "\n";
    if (!write_out(text)) return {};
    pollfd keys{STDIN_FILENO, POLLIN, 0};
    if (::poll(&keys, 1, kEveryMs) <= 0) continue;
    std::array<char, 256> typed{};
    if (::read(STDIN_FILENO, typed.data(), typed.size()) <= 0) return {};
    answer.clear();
    if (waiting.empty() || (typed[0] != 'y' && typed[0] != 'n')) continue;
    const Status answered =
        typed[0] == 'y' ? room::allow(inside.client, inside.way.link, waiting, inside.room)
                        : inside.client.answer_lobby(inside.way.link.code, waiting, false, "");
    if (!answered.ok()) answer = answered.error().message;
  }
  return {};
}

Status show(const RoomFlags& flags) {
  TANDEM_ASSIGN(Inside inside, go_inside(flags.action, flags.hub));
  if (!flags.allow.empty()) {
    return room::allow(inside.client, inside.way.link, flags.allow, inside.room);
  }
  if (!flags.deny.empty()) {
    return inside.client.answer_lobby(inside.way.link.code, flags.deny, false, "");
  }
  if (flags.close) return inside.client.close_room(inside.way.link.code);
  // What a device that has just joined is told lacks the lobby.
  TANDEM_ASSIGN(inside.room, inside.client.room(inside.way.link.code));
  if (flags.json) {
    write_out(room_json(inside.room));
  } else if (::isatty(STDOUT_FILENO) == 1 && ::isatty(STDIN_FILENO) == 1) {
    return watch(inside);
  } else {
    write_out(room_text(inside.room));
  }
  return {};
}

}  // namespace

int room_command(Arguments arguments) {
  RoomFlags own;
  std::optional<std::string> action;
  Flags flags("room", "create --hub URL [FLAGS] | LINK [FLAGS]",
              "'create' makes a room at a hub and prints its code and its link. Whoever has the\n"
              "link may join; whoever has the code alone has to be let in. With a link or code\n"
              "(or @FILE, or -) shows that room live: devices, layers, loads, lap times.");
  flags.add_positional("create|LINK", action, "what to do, or the room to show", true);
  flags.add("--hub", "URL", own.hub, kHubHelp);
  flags.add("-m,--model", "PATH", own.model,
            "create: model that the room runs (default: $TANDEM_MODEL or models/storyteller)");
  flags.add("--context", "N", own.context, 0, UINT32_MAX,
            "create: positions of a conversation (default: 4096, or what the model has)");
  flags.add_choice("--objective", "WHAT", own.objective, {"fastest", "throughput", "memory"},
                   "create: what the split of layers is best at (default: fastest)");
  flags.add_choice("--weights", "16|8|4", own.weights, {"16", "8", "4"},
                   "create: bits of a weight (default: 8)");
  flags.add_choice("--kv", "16|8", own.kv, {"16", "8"},
                   "create: bits of a channel of keys and values (default: 16)");
  flags.add("--sources", "LIST", own.sources,
            "create: where devices may get weights: of cache,peer,hub,host,huggingface\n"
            "(default: cache,peer,host; without peer: never from each other)");
  flags.add("--no-spares", own.no_spares,
            "create: devices that get no layers don't stand by with those of others");
  flags.add("--allow", "DEVICE", own.allow, "let a device in that waits in the lobby");
  flags.add("--deny", "DEVICE", own.deny, "send it away");
  flags.add("--close", own.close, "close the room, for its creator and its host");
  flags.add("--json", own.json, "one JSON object: code, link, hub; or the room, once");
  flags.add_example("tandem room create --hub https://127.0.0.1:7443 -m ~/models/Qwen3-4B");
  flags.add_example("tandem room @room.link");
  flags.add_example("tandem room K7PM2X --allow 0f1e2d3c4b5a69788796a5b4c3d2e1f0");
  if (const auto code = flags.parse(arguments)) return *code;
  own.action = *action;
  if (own.action != "create") {
    for (const char* flag :
         {"--model", "--context", "--objective", "--weights", "--kv", "--no-spares", "--sources"}) {
      if (flags.given(flag)) return flags.wrong_use(std::string(flag) + " goes with 'create'");
    }
    if (static_cast<int>(!own.allow.empty()) + static_cast<int>(!own.deny.empty()) +
            static_cast<int>(own.close) >
        1) {
      return flags.wrong_use("--allow, --deny and --close exclude each other");
    }
    const Status shown = show(own);
    return shown.ok() ? kSuccess : fail("room", shown.error(), own.json);
  }
  if (!own.allow.empty() || !own.deny.empty() || own.close) {
    return flags.wrong_use("--allow, --deny and --close need a room's link or code");
  }
  const auto created = create(own);
  if (!created.ok()) return fail("room", created.error(), own.json);
  if (own.json) {
    write_out(Json{{"code", created->code}, {"link", created->link}, {"hub", created->hub}}.dump() +
              "\n");
  } else {
    write_out("code " + created->code + "\nlink " + created->link + "\n");
    if (own.objective == "fastest") {
      note(
          "The room's objective is fastest: devices that would only slow an answer down get no "
          "layers, and\na model that fits into the asking device runs there alone. --objective "
          "memory shares the layers out\nover all devices, here or with run, chat and plan.\n");
    }
  }
  return kSuccess;
}

int join_command(Arguments arguments) {
  std::string hub;
  bool json = false;
  std::optional<std::string> link;
  Flags flags("join", "LINK|CODE [FLAGS]",
              "Joins a room to ask it for answers: with its link at once, with its code alone\n"
              "after its host has said yes. From then on its code is enough to name it.");
  flags.add_positional("LINK|CODE", link, "the room; @FILE, or - for standard input", true);
  flags.add("--hub", "URL", hub, "with a code: the hub's address (default: the one known here)");
  flags.add("--json", json, "one JSON object: code, hub, device");
  flags.add_example("tandem join @room.link");
  flags.add_example("tandem join K7PM2X --hub https://hub.example.org");
  if (const auto code = flags.parse(arguments)) return *code;
  const auto inside = go_inside(*link, hub);
  if (!inside.ok()) return fail("join", inside.error(), json);
  const std::string code = inside->way.link.code;
  if (json) {
    write_out(Json{{"code", code},
                   {"hub", inside->way.link.hub.text()},
                   {"device", inside->home.identity().device_id()}}
                  .dump() +
              "\n");
  } else {
    write_out("joined room " + code + "\n");
  }
  return kSuccess;
}

}  // namespace tandem::cli
