// tandem probe and tandem plan: what devices can do, and which layers would lie where.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/room_plan.h"
#include "cli/room_report.h"
#include "room/spares.h"

namespace tandem::cli {
namespace {

struct PlanFlags {
  ModelFlags model;
  std::string memory;     ///< that the host lends; empty: what there is
  std::string objective;  ///< empty: fastest, or as the room was made
  std::string without;
  std::string with;
  uint32_t prompt = 512;
  bool json = false;

  void add(Flags& flags) {
    model.add_model(flags);
    flags.add("--workers", "HOST:PORT,...", model.workers, "workers to measure");
    flags.add("--local", "N", model.local, 1, 64, "start N worker processes on this machine");
    add_key_flags(flags, model.key, model.identity);
    flags.add("--memory", "SIZE", memory,
              "memory that this machine lends (default: what there is); 0: no layers");
    flags.add("--context", "N", model.context, 1, 10'000'000,
              "positions of the room (default: 4096, or what the model has)");
    flags.add_choice("--weights", "16|8|4", model.weights, {"16", "8", "4"},
                     "bits of a weight (default: 8)");
    flags.add_choice("--kv", "16|8", model.kv, {"16", "8"},
                     "bits of a key's or value's channel in the KV cache (default: 16)");
    flags.add("--threads", "N", model.threads, 1, 256,
              "threads (default: one a core; with --local the cores shared out)");
    flags.add_choice("--isa", "SET", model.isa, isa_names(),
                     "instruction set of the kernels (default: best)");
    add_cache_flag(flags, model.cache);
    flags.add("--json", json, "print one JSON object");
  }
};

/// A model and the workers to measure it on.
struct Room {
  Model model;
  std::unique_ptr<ring::LocalWorkers> local;
  std::shared_ptr<weights::PackedCache> cache;
  std::unique_ptr<weights::Manifest> manifest;
  ring::ProbeOptions options;
};

Result<std::unique_ptr<Room>> open_room(const PlanFlags& flags) {
  auto room = std::make_unique<Room>();
  TANDEM_ASSIGN(room->model, Model::open(flags.model.model));
  TANDEM_ASSIGN(room->cache, open_cache(flags.model.cache, true));
  TANDEM_ASSIGN(const auto workers,
                open_workers(flags.model, *room->model.checkpoint, room->local));
  if (!workers.empty()) {
    TANDEM_ASSIGN(room->manifest, identify(flags.model, *room->model.checkpoint));
  }
  TANDEM_ASSIGN(const auto local, own_stages(flags.model, room->cache));
  TANDEM_ASSIGN(const auto tls, open_tls(flags.model.key, flags.model.identity));
  room->options = probe_options(room->model, room->manifest.get(), local, workers);
  room->options.context =
      std::min(room->model.config.context, flags.model.context == 0 ? 4096 : flags.model.context);
  if (flags.memory == "0") {
    room->options.host_memory = 0;
  } else if (!flags.memory.empty()) {
    TANDEM_ASSIGN(room->options.host_memory, parse_size(flags.memory));
  }
  return room;
}

double ms(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-6;
}

nlohmann::ordered_json to_json(const wire::Spread& spread, double unit) {
  return {{"median", static_cast<double>(spread.median) * unit},
          {"low", static_cast<double>(spread.low) * unit},
          {"high", static_cast<double>(spread.high) * unit}};
}

nlohmann::ordered_json to_json(const std::vector<wire::Measured::Width>& widths, uint32_t layers) {
  auto array = nlohmann::ordered_json::array();
  for (const auto& width : widths) {
    array.push_back({{"width", width.width},
                     {"runs", width.runs},
                     {"layer_ms", to_json(width.nanoseconds, 1e-6 / layers)}});
  }
  return array;
}

std::string probe_json(const ring::RoomProbe& probe) {
  nlohmann::ordered_json object;
  object["devices"] = nlohmann::ordered_json::array();
  for (const ring::DeviceProbe& device : probe.devices) {
    const uint32_t layers = std::max(1U, device.layers.count());
    object["devices"].push_back({{"device", device.id},
                                 {"memory", device.memory},
                                 {"could_lend", device.could_lend},
                                 {"threads", device.threads},
                                 {"layers", ring::text(device.layers)},
                                 {"weight_bytes", device.weight_bytes},
                                 {"load_bytes", device.load_bytes},
                                 {"load_seconds", device.load_seconds},
                                 {"alone", to_json(device.alone, layers)},
                                 {"together", to_json(device.together, layers)}});
  }
  object["links"] = nlohmann::ordered_json::array();
  for (const ring::LinkProbe& link : probe.links) {
    object["links"].push_back({{"a", probe.devices[link.a].id},
                               {"b", probe.devices[link.b].id},
                               {"rtt_ms", to_json(link.rtt_ns, 1e-6)},
                               {"bytes_per_second", to_json(link.bytes_per_second, 1)}});
  }
  object["host_ms"] = probe.host_ms;
  object["host_token_ms"] = probe.host_token_ms;
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string probe_text(const ring::RoomProbe& probe) {
  std::vector<std::vector<std::string>> rows{{"device", "memory", "measured"}};
  for (const uint32_t width : ring::kProbeWidths) {
    rows[0].push_back("ms a layer, " + std::to_string(width));
  }
  for (const ring::DeviceProbe& device : probe.devices) {
    for (const auto* widths : {&device.alone, &device.together}) {
      if (widths->empty() && widths == &device.together) continue;
      const bool alone = widths == &device.alone;
      std::vector<std::string> row{alone ? device.id : "  all at once",
                                   alone ? bytes_text(device.memory) : "",
                                   alone ? ring::text(device.layers) : ""};
      for (const uint32_t width : ring::kProbeWidths) {
        const auto at = std::find_if(widths->begin(), widths->end(),
                                     [&](const auto& one) { return one.width == width; });
        const double layers = device.layers.count();
        row.push_back(at == widths->end() ? std::string()
                                          : number(ms(at->nanoseconds.median) / layers, 3) + " (" +
                                                number(ms(at->nanoseconds.low) / layers, 3) + "-" +
                                                number(ms(at->nanoseconds.high) / layers, 3) + ")");
      }
      rows.push_back(std::move(row));
    }
  }
  std::string text = table(rows, {false, true, false, true, true, true, true});
  if (!probe.links.empty()) {
    std::vector<std::vector<std::string>> links{{"link", "", "ms there and back", "speed"}};
    for (const ring::LinkProbe& link : probe.links) {
      links.push_back({probe.devices[link.a].id, probe.devices[link.b].id,
                       number(ms(link.rtt_ns.median), 3) + " (" + number(ms(link.rtt_ns.low), 3) +
                           "-" + number(ms(link.rtt_ns.high), 3) + ")",
                       bytes_text(link.bytes_per_second.median) + "/s (" +
                           bytes_text(link.bytes_per_second.low) + "-" +
                           bytes_text(link.bytes_per_second.high) + ")"});
    }
    text += "\n" + table(links, {false, false, true, true});
  }
  return text + "\nembedding and head  " + number(probe.host_ms, 3) + " ms a lap\n";
}

Result<std::string> run_probe(const PlanFlags& flags) {
  TANDEM_ASSIGN(const auto room, open_room(flags));
  TANDEM_ASSIGN(const auto probe, ring::probe_room(room->options));
  return flags.json ? probe_json(probe) : probe_text(probe);
}

/// "SIZE@MS".
Result<std::pair<uint64_t, double>> parse_with(const std::string& text) {
  const auto at = text.find('@');
  if (at != std::string::npos) {
    const auto size = parse_size(text.substr(0, at));
    char* end = nullptr;
    const std::string rest = text.substr(at + 1);
    const double value = std::strtod(rest.c_str(), &end);
    if (size.ok() && !rest.empty() && *end == 0) return std::pair{*size, value};
  }
  return invalid("--with is '" + text + "'; expected SIZE@MS like 8G@1.5: memory lent, and ms a " +
                 "layer of one token");
}

Result<std::vector<std::pair<uint32_t, ring::LayerRange>>> manual(const PlanFlags& flags,
                                                                  const ring::PlanInput& input) {
  std::vector<std::pair<uint32_t, ring::LayerRange>> result;
  const auto layers = static_cast<uint32_t>(input.model.layers.size());
  const auto workers = static_cast<uint32_t>(input.devices.size() - 1);
  TANDEM_ASSIGN(const auto ranges, ring::parse_split(flags.model.split, layers, workers));
  for (uint32_t i = 0; i < workers; ++i) result.emplace_back(i + 1, ranges[i]);
  return result;
}

/// --split, --without and --with.
Status what_if(const PlanFlags& flags, ring::PlanInput& input) {
  if (!flags.model.split.empty()) {
    TANDEM_ASSIGN(input.manual, manual(flags, input));
  }
  if (!flags.without.empty()) {
    for (const std::string& id : split_commas(flags.without)) {
      TANDEM_ASSIGN(input, ring::without(input, id));
    }
  }
  if (!flags.with.empty()) {
    for (const std::string& one : split_commas(flags.with)) {
      TANDEM_ASSIGN(const auto device, parse_with(one));
      TANDEM_ASSIGN(input, ring::with(input, device.first, device.second));
    }
  }
  return {};
}

Result<std::string> run_room_plan(PlanFlags& flags) {
  std::shared_ptr<room::Host> host;
  TANDEM_ASSIGN(Model model, open_model(flags.model, host));
  TANDEM_ASSIGN(auto cache, open_cache(flags.model.cache, true));
  TANDEM_ASSIGN(const auto manifest, identify(flags.model, *model.checkpoint));
  TANDEM_TRY(check_room_model(*host, *manifest));
  TANDEM_ASSIGN(const auto local, own_stages(flags.model, std::move(cache)));
  room::DealOptions options;
  options.probe = probe_options(model, manifest.get(), local, {});
  options.probe.context =
      flags.model.context == 0 ? std::min(model.config.context, 4096U) : flags.model.context;
  TANDEM_ASSIGN(options.probe.host_memory, parse_limit(flags.memory, "--memory"));
  TANDEM_ASSIGN(options.objective, room_objective(*host));
  if (!flags.objective.empty()) {
    TANDEM_ASSIGN(options.objective, ring::parse_objective(flags.objective));
  }
  options.prompt = flags.prompt;
  options.hire = false;
  TANDEM_ASSIGN(auto deal, room::deal(*host, options));
  if (!flags.model.split.empty() || !flags.without.empty() || !flags.with.empty()) {
    TANDEM_TRY(what_if(flags, deal.input));
    TANDEM_ASSIGN(deal.plan, ring::plan(deal.input));
  }
  // A what-if has other devices than the deal.
  const bool as_dealt = flags.model.split.empty() && flags.without.empty() && flags.with.empty();
  std::vector<ring::RingWorker> spares;
  if (as_dealt && room_spares(*host)) spares = room::choose_spares(deal, deal.workers);
  if (flags.json) return plan_json(deal.input, deal.plan, deal.left_out, spares);
  return plan_text(deal.input, deal.plan) + spares_text(spares) + left_out_lines(deal);
}

Result<std::string> run_plan(PlanFlags& flags) {
  if (!flags.model.room.empty()) return run_room_plan(flags);
  TANDEM_ASSIGN(const auto room, open_room(flags));
  TANDEM_ASSIGN(const auto probe, ring::probe_room(room->options));
  ring::PlanInput input = ring::plan_input(room->options, probe);
  TANDEM_ASSIGN(input.objective,
                ring::parse_objective(flags.objective.empty() ? "fastest" : flags.objective));
  input.prompt = flags.prompt;
  TANDEM_TRY(what_if(flags, input));
  TANDEM_ASSIGN(const ring::Plan plan, ring::plan(input));
  return flags.json ? plan_json(input, plan) : plan_text(input, plan);
}

}  // namespace

int probe_command(Arguments arguments) {
  PlanFlags own;
  Flags flags(
      "probe", "-m MODEL [--workers HOST:PORT,...] [FLAGS]",
      "Measures this machine, workers, and the ways between them: each runs passes of a few\n"
      "of the model's layers, inside the memory that it lends. Median (least-greatest).");
  own.add(flags);
  flags.add_example("tandem probe");
  flags.add_example("tandem probe -m Qwen3-4B --workers 10.0.0.2:7000,10.0.0.3:7000");
  if (const auto code = flags.parse(arguments)) return *code;
  if (const Status status = own.model.check(); !status.ok()) {
    return flags.wrong_use(status.error().message);
  }
  const auto text = run_probe(own);
  if (!text.ok()) return fail("probe", text.error(), own.json);
  write_out(*text);
  return kSuccess;
}

int plan_command(Arguments arguments) {
  PlanFlags own;
  Flags flags(
      "plan", "-m MODEL [--workers HOST:PORT,...] [FLAGS]",
      "Measures the devices, and shows which layers would lie where and how fast that would\n"
      "be; if the model does not fit, what is short and what would help. Loads nothing.");
  own.add(flags);
  flags.add_choice("--objective", "WHAT", own.objective, {"fastest", "throughput", "memory"},
                   "fastest answer, least slowest stage, or in proportion to memory");
  flags.add("--room", "LINK", own.model.room,
            "a room's devices: its link or code, @FILE, or - for standard input");
  flags.add("--split", "0-3,4-7,...", own.model.split,
            "layers of each worker, others here: what would that be worth?");
  flags.add("--prompt", "N", own.prompt, 1, 1'000'000,
            "tokens of the prompt whose speed is predicted (default: 512)");
  flags.add("--without", "DEVICE,...", own.without, "what if these workers were not there?");
  flags.add("--with", "SIZE@MS,...", own.with,
            "what if these were: memory lent, and ms a layer of one token?");
  flags.add_example("tandem plan --local 2");
  flags.add_example("tandem plan --room @room.link --without laptop");
  flags.add_example("tandem plan -m Qwen3-4B --workers 10.0.0.2:7000,10.0.0.3:7000 --with 8G@2");
  if (const auto code = flags.parse(arguments)) return *code;
  if (const Status status = own.model.check(); !status.ok()) {
    return flags.wrong_use(status.error().message);
  }
  const auto text = run_plan(own);
  if (!text.ok()) return fail("plan", text.error(), own.json);
  write_out(*text);
  return kSuccess;
}

}  // namespace tandem::cli
