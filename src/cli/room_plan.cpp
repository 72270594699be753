#include "cli/room_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/output.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;

std::string with_backend(const ring::PlanInput& input, const ring::PlanStage& stage) {
  const ring::PlanDevice& device = input.devices[stage.device];
  if (device.backends.size() == 1) return device.id;
  return device.id + " (" + device.backends[stage.backend].name + ")";
}

/// For a plan that has the host alone, though others could take part: what the same devices would
/// do with another objective.
std::optional<std::pair<ring::Objective, ring::Plan>> shared_out(const ring::PlanInput& input,
                                                                 const ring::Plan& plan) {
  const bool alone = std::all_of(plan.stages.begin(), plan.stages.end(),
                                 [&](const auto& stage) { return stage.device == input.host; });
  if (!alone || plan.shortage || !input.manual.empty() || input.devices.size() < 2) {
    return std::nullopt;
  }
  ring::PlanInput other = input;
  // In proportion to memory a host that has much more than the others gets everything as well.
  for (const auto objective : {ring::Objective::kMemory, ring::Objective::kThroughput}) {
    other.objective = objective;
    auto shared = ring::plan(other);
    if (shared.ok() && !shared->shortage && shared->stages.size() > 1) {
      return std::pair(objective, std::move(*shared));
    }
  }
  return std::nullopt;
}

}  // namespace

std::string alone_text(const ring::PlanInput& input, const ring::Plan& plan) {
  const auto shared = shared_out(input, plan);
  if (!shared) return "";
  const auto& [objective, other] = *shared;
  return "The whole model fits into this device and answers fastest here alone, at " +
         number(plan.decode_tokens_per_second, 1) + " tokens/s. Shared out over " +
         std::to_string(other.stages.size()) + " devices it would be " +
         number(other.decode_tokens_per_second, 1) + " tokens/s: --objective " +
         std::string(name(objective)) + " does that.\n";
}

std::string spares_text(const std::vector<ring::RingWorker>& spares) {
  std::string text;
  for (const ring::RingWorker& spare : spares) {
    text += spare.label() + " stands by for layers " + ring::text(spare.layers) + "\n";
  }
  return text;
}

ring::ProbeOptions probe_options(Model& model, const weights::Manifest* manifest,
                                 const model::StageOptions& local,
                                 const std::vector<ring::RingWorker>& workers) {
  ring::ProbeOptions options;
  options.config_json = model.checkpoint->config_json();
  options.origin = origin_of(*model.checkpoint);
  options.config = model.config;
  options.manifest = manifest;
  options.source = model.checkpoint.get();
  options.local = local;
  options.workers = workers;
  const auto line = std::make_shared<ProgressLine>();
  options.progress = [line](std::string_view what) {
    line->show("measuring " + std::string(what), 0, 0);
  };
  options.cancel = &cancel_flag();
  return options;
}

Result<std::vector<ring::RingWorker>> planned_workers(const ring::ProbeOptions& options,
                                                      bool quiet) {
  TANDEM_ASSIGN(const ring::RoomProbe probe, ring::probe_room(options));
  const ring::PlanInput input = ring::plan_input(options, probe);
  TANDEM_ASSIGN(const ring::Plan plan, ring::plan(input));
  if (plan.shortage) return Error{ErrorKind::kMemory, shortage_text(input, *plan.shortage)};
  if (!quiet) note(plan_text(input, plan) + "\n");
  std::vector<ring::RingWorker> workers;
  for (const ring::PlanStage& stage : plan.stages) {
    if (stage.device == input.host) continue;
    // Devices are the host, then the workers.
    workers.push_back(options.workers[stage.device - 1]);
    workers.back().layers = stage.layers;
  }
  return workers;
}

std::string shortage_text(const ring::PlanInput& input, const ring::Short& shortage) {
  std::string text;
  if (shortage.host_too_small) {
    text = "the host lends too little for the embedding and the head; ";
  }
  text += std::to_string(shortage.layers_held) + " of " + std::to_string(shortage.layers_needed) +
          " layers fit, " + bytes_text(shortage.bytes_short) + " are short";
  for (const auto& lender : shortage.could_lend) {
    text += "; " + input.devices[lender.device].id + " could lend " + bytes_text(lender.bytes) +
            " more" + (lender.enough ? ", which is enough" : "");
  }
  if (shortage.context_fits > 0) {
    text += "; a context of " + std::to_string(shortage.context_fits) + " would fit";
  }
  if (shortage.four_bits_fit) text += "; weights of 4 bits would fit";
  return text;
}

namespace {

/// How many of a stage's layers its device has the weights of on its disk, as it says; the host has
/// the model.
uint32_t cached_layers(const ring::PlanInput& input, const ring::PlanStage& stage) {
  if (stage.device == input.host) return stage.layers.count();
  uint32_t count = 0;
  for (uint32_t layer = stage.layers.first; layer < stage.layers.last; ++layer) {
    const auto& cached = input.devices[stage.device].cached;
    count += std::any_of(cached.begin(), cached.end(), [&](const ring::LayerRange& range) {
      return range.first <= layer && layer < range.last;
    });
  }
  return count;
}

}  // namespace

std::string plan_text(const ring::PlanInput& input, const ring::Plan& plan) {
  if (plan.shortage) {
    return "The room is short: " + shortage_text(input, *plan.shortage) + ".\n";
  }
  std::vector<std::vector<std::string>> rows{
      {"device", "layers", "weights", "state", "ms a pass", "ms a hop"}};
  std::vector<bool> right{false, false, true, true, true, true};
  for (const ring::PlanStage& stage : plan.stages) {
    rows.push_back({with_backend(input, stage), ring::text(stage.layers),
                    bytes_text(stage.weight_bytes), bytes_text(stage.state_bytes),
                    number(stage.ms, 3), number(stage.hop_ms, 3)});
  }
  rows.push_back({input.devices[input.host].id, "embedding, head",
                  bytes_text(input.model.ends_bytes), "", number(input.model.host_ms, 3), ""});
  if (std::any_of(input.devices.begin(), input.devices.end(),
                  [](const ring::PlanDevice& device) { return !device.cached.empty(); })) {
    rows.front().emplace_back("layers on disk");
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      rows[i + 1].push_back(std::to_string(cached_layers(input, plan.stages[i])) + " of " +
                            std::to_string(plan.stages[i].layers.count()));
    }
    rows.back().emplace_back("");
    right.push_back(true);
  }
  std::string text = table(rows, right);
  text += "predicted  " + number(plan.decode_tokens_per_second, 1) + " tokens/s, a lap " +
          number(plan.lap_ms, 3) + " ms; a prompt " + number(plan.prefill_tokens_per_second, 1) +
          " tokens/s\n";
  text += alone_text(input, plan);
  if (plan.faster_alone) {
    text += "One device alone would be faster: " + input.devices[*plan.faster_alone].id + " with " +
            number(plan.alone_tokens_per_second, 1) + " tokens/s.\n";
  }
  for (const auto& [device, reason] : plan.left_out) {
    text += input.devices[device].id + " gets no layers: " + std::string(name(reason)) + "\n";
  }
  if (!plan.proved && input.manual.empty()) {
    text += "Not proved to be the best split: a lap may be " + number(plan.beyond_ms, 3) +
            " ms too long.\n";
  }
  return text;
}

std::string plan_json(const ring::PlanInput& input, const ring::Plan& plan,
                      const std::vector<std::pair<std::string, std::string>>& left_out,
                      const std::vector<ring::RingWorker>& spares) {
  ordered_json object;
  object["objective"] = std::string(name(input.objective));
  object["context"] = input.model.context;
  object["host"] = input.devices[input.host].id;
  object["stages"] = ordered_json::array();
  for (const ring::PlanStage& stage : plan.stages) {
    object["stages"].push_back(
        {{"device", input.devices[stage.device].id},
         {"backend", input.devices[stage.device].backends[stage.backend].name},
         {"layers", ring::text(stage.layers)},
         {"bytes", stage.weight_bytes + stage.state_bytes},
         {"weight_bytes", stage.weight_bytes},
         {"state_bytes", stage.state_bytes},
         {"cached_layers", cached_layers(input, stage)},
         {"ms_per_pass", stage.ms},
         {"hop_ms", stage.hop_ms}});
  }
  if (!plan.shortage) {
    object["predicted_tokens_per_second"] = plan.decode_tokens_per_second;
    object["predicted_prefill_tokens_per_second"] = plan.prefill_tokens_per_second;
    object["lap_ms"] = plan.lap_ms;
    object["slowest_ms"] = plan.slowest_ms;
    object["load_seconds"] = plan.load_seconds;
    object["proved"] = plan.proved;
    object["beyond_ms"] = plan.beyond_ms;
    if (plan.faster_alone) {
      object["faster_alone"] = {{"device", input.devices[*plan.faster_alone].id},
                                {"tokens_per_second", plan.alone_tokens_per_second}};
    }
    if (const auto shared = shared_out(input, plan)) {
      object["shared_out"] = {{"objective", std::string(name(shared->first))},
                              {"devices", shared->second.stages.size()},
                              {"tokens_per_second", shared->second.decode_tokens_per_second}};
    }
    object["spares"] = ordered_json::array();
    for (const ring::RingWorker& spare : spares) {
      object["spares"].push_back({{"device", spare.label()}, {"layers", ring::text(spare.layers)}});
    }
  }
  object["left_out"] = ordered_json::array();
  for (const auto& [device, reason] : plan.left_out) {
    object["left_out"].push_back(
        {{"device", input.devices[device].id}, {"reason", std::string(name(reason))}});
  }
  for (const auto& [device, reason] : left_out) {
    object["left_out"].push_back({{"device", device}, {"reason", reason}});
  }
  if (plan.shortage) {
    const ring::Short& shortage = *plan.shortage;
    ordered_json lenders = ordered_json::array();
    for (const auto& lender : shortage.could_lend) {
      lenders.push_back({{"device", input.devices[lender.device].id},
                         {"bytes", lender.bytes},
                         {"enough", lender.enough}});
    }
    object["short"] = {
        {"layers_held", shortage.layers_held},    {"layers_needed", shortage.layers_needed},
        {"bytes_short", shortage.bytes_short},    {"host_too_small", shortage.host_too_small},
        {"could_lend", std::move(lenders)},       {"context_fits", shortage.context_fits},
        {"four_bits_fit", shortage.four_bits_fit}};
  }
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::cli
