// tandem doctor: finds the common causes of trouble, and says what to do.
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "hub/client.h"

namespace tandem::cli {
namespace {

using State = Check::State;

const char* text_of(State state) {
  switch (state) {
    case State::kOk:
      return "ok";
    case State::kWarning:
      return "warning";
    case State::kProblem:
      return "problem";
  }
  return "";
}

struct Needs {
  uint64_t here = 0;  ///< bytes of weights and KV cache on this device, if it holds all layers
  uint64_t disk = 0;  ///< quantized weights in the cache
};

/// What the model takes here, from its headers.
Result<Needs> needs_of(const ModelFlags& flags, uint32_t context, bool with_workers) {
  TANDEM_ASSIGN(const Model model, Model::open(flags.model));
  model::StageOptions stage;
  stage.weights = weight_bits(flags.weights);
  stage.last_layer = model.config.layers;
  Needs needs;
  needs.here = model::ends_bytes(model.config, stage.weights);
  if (with_workers) return needs;
  const uint64_t layers = model::stage_bytes(model.config, stage);
  needs.disk = needs.here + layers;
  needs.here += layers + model::state_bytes(model.config, 0, model.config.layers,
                                            std::min(context, model.config.context), stage.kv);
  return needs;
}

std::string lines_of(const std::vector<Check>& checks) {
  std::string text;
  for (const Check& check : checks) {
    const std::string state = text_of(check.state);
    text += state + std::string(9 - state.size(), ' ') + check.name + ": " + check.found + "\n";
    if (!check.advice.empty()) text += "         " + check.advice + "\n";
  }
  return text;
}

}  // namespace

int doctor_command(Arguments arguments) {
  ModelFlags model;
  std::string hub;
  std::string listen = "127.0.0.1:7000";
  System system;
  uint32_t threads = cores();
  uint32_t context = 4096;
  bool json = false;
  Flags flags("doctor", "[--hub URL] [--workers HOST:PORT,…] [FLAGS]",
              "Looks for what usually goes wrong: processor and its limits, memory, cache, keys,\n"
              "ports, workers, hub, clocks. Changes nothing. Exit code 1 if there is a problem.");
  model.add_model(flags);
  flags.add("--hub", "URL", hub, "a hub to look at (see 'tandem hub')");
  flags.add("--workers", "HOST:PORT,…", model.workers, "workers to look at");
  add_key_flags(flags, model.key, model.identity);
  flags.add("--listen", "HOST:PORT", listen, "where a worker of this machine is to listen");
  flags.add("--threads", "N", threads, 1, 256, "threads that are to compute (default: one a core)");
  flags.add("--context", "N", context, 1, 10'000'000, "positions of a conversation");
  flags.add_choice("--weights", "BITS", model.weights, {"16", "8", "4"}, "bits of a weight");
  add_cache_flag(flags, model.cache);
  flags.add("--root", "DIR", system.root, "look at /proc and /sys of DIR, such as a container's");
  flags.add("--json", json, "one JSON object: checks, problems, warnings");
  flags.add_example("tandem doctor -m ~/models/Qwen3-4B --workers 10.0.0.2:7000 --key room.key");
  if (const auto code = flags.parse(arguments)) return *code;
  if (model.key.empty() && !model.identity.empty()) {
    return flags.wrong_use("--identity needs --key");
  }

  std::vector<Check> checks;
  const auto add = [&](const std::vector<Check>& more) {
    checks.insert(checks.end(), more.begin(), more.end());
  };
  add({{"version", State::kOk,
        ring::software_version() + ", arithmetic contract " +
            std::to_string(ring::contract_version()) + ", protocol " +
            std::to_string(wire::kProtocolVersion),
        ""}});
  add(check_processor(system, threads));
  add(check_kernels());
  const auto needs = needs_of(model, context, !model.workers.empty());
  if (!needs.ok() && flags.given("--model")) {
    add({{"model", State::kProblem, needs.error().message, "check the path"}});
  }
  add(check_memory(system, needs.ok() ? needs->here : 0));
  add(check_huge_pages(system));
  add(check_cache(model.cache, needs.ok() ? needs->disk : 0));
  const auto home = hub::Home::usual_folder();
  add(check_home(home));
  add({check_listen(listen, flags.given("--listen"))});
  if (!model.workers.empty()) {
    const auto tls = open_tls(model.key, model.identity);
    if (!tls.ok()) {
      add({{"key", State::kProblem, tls.error().message, "see docs/security.md"}});
    } else {
      for (const std::string& one : split_commas(model.workers)) {
        const auto pinned = wire::split_pin(one);
        if (!pinned.ok()) {
          add({{"worker", State::kProblem, pinned.error().message, ""}});
        } else {
          add(check_worker({pinned->first, {}, pinned->second}, *tls));
        }
      }
    }
  }
  if (!hub.empty()) add(check_hub(hub, home));
  add({check_mdns()});

  const auto count = [&](State state) {
    return std::count_if(checks.begin(), checks.end(),
                         [&](const Check& check) { return check.state == state; });
  };
  const auto problems = count(State::kProblem);
  if (json) {
    nlohmann::ordered_json object{{"checks", nlohmann::ordered_json::array()},
                                  {"problems", problems},
                                  {"warnings", count(State::kWarning)}};
    for (const Check& check : checks) {
      object["checks"].push_back({{"name", check.name},
                                  {"state", text_of(check.state)},
                                  {"found", check.found},
                                  {"advice", check.advice}});
    }
    write_out(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  } else {
    write_out(lines_of(checks));
  }
  return problems == 0 ? kSuccess : kFailure;
}

}  // namespace tandem::cli
