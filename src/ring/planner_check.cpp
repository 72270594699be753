// What plan() takes at all: every number is looked at before it is reckoned with.
#include "ring/planner_check.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace tandem::ring {
namespace {

constexpr double kMostMs = 1e7;      // nearly three hours for one layer
constexpr double kMostRtt = 6e4;     // a minute
constexpr double kMostSpeed = 1e13;  // bytes per second
constexpr uint64_t kMostBytes = uint64_t{1} << 50;

std::string shown(double value) {
  if (std::isnan(value)) return "not a number";
  if (std::isinf(value)) return "infinite";
  std::string text = std::to_string(value);
  return text;
}

Status in_range(double value, double low, double high, const std::string& what) {
  if (value >= low && value <= high) return {};
  return invalid(what + " is " + shown(value) + ", expected " + shown(low) + " to " + shown(high));
}

Status positive(double value, double high, const std::string& what) {
  if (value > 0 && value <= high) return {};
  return invalid(what + " is " + shown(value) + ", expected more than 0 and at most " +
                 shown(high));
}

Status bytes_in_range(uint64_t value, const std::string& what) {
  if (value <= kMostBytes) return {};
  return invalid(what + " is " + std::to_string(value) + " bytes, expected at most " +
                 std::to_string(kMostBytes));
}

Status check_model(const PlanModel& model) {
  if (model.layers.empty() || model.layers.size() > kMaxPlanLayers) {
    return invalid("a model of " + std::to_string(model.layers.size()) + " layers, expected 1 to " +
                   std::to_string(kMaxPlanLayers));
  }
  if (model.hidden_size == 0) return invalid("the model's hidden size is 0");
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const PlanLayer& layer = model.layers[i];
    const std::string what = "layer " + std::to_string(i);
    if (layer.weight_bytes == 0) return invalid(what + " has no weights");
    TANDEM_TRY(bytes_in_range(layer.weight_bytes, what + "'s weights"));
    TANDEM_TRY(bytes_in_range(layer.weight_bytes_4, what + "'s weights at 4 bits"));
    TANDEM_TRY(bytes_in_range(layer.state_bytes, what + "'s state"));
    TANDEM_TRY(positive(layer.work, 1e6, what + "'s work"));
  }
  TANDEM_TRY(bytes_in_range(model.ends_bytes, "the model's embedding and head"));
  TANDEM_TRY(bytes_in_range(model.draft_bytes, "the draft model"));
  TANDEM_TRY(bytes_in_range(model.load_bytes, "the model's largest tensor"));
  TANDEM_TRY(in_range(model.host_ms, 0, kMostMs, "the host's own time of a lap in ms"));
  TANDEM_TRY(in_range(model.host_token_ms, 0, kMostMs, "the host's time of a token in ms"));
  for (const ContextOption& option : model.smaller) {
    if (option.state_bytes.size() != model.layers.size()) {
      return invalid("the states at a context of " + std::to_string(option.context) + " are of " +
                     std::to_string(option.state_bytes.size()) + " layers, the model has " +
                     std::to_string(model.layers.size()));
    }
  }
  return {};
}

Status check_device(const PlanDevice& device, size_t layers) {
  const std::string who = "device " + device.id;
  if (device.backends.empty() || device.backends.size() > 8) {
    return invalid(who + " has " + std::to_string(device.backends.size()) +
                   " backends, expected 1 to 8");
  }
  for (const PlanBackend& backend : device.backends) {
    const std::string what = who + "'s backend " + backend.name;
    TANDEM_TRY(bytes_in_range(backend.memory, what + "'s memory"));
    if (backend.memory == 0) return invalid(what + " lends 0 bytes of memory");
    TANDEM_TRY(bytes_in_range(backend.fixed_bytes, what + "'s fixed memory"));
    TANDEM_TRY(in_range(backend.pass_ms, 0, kMostMs, what + "'s time of a pass in ms"));
    if (!backend.layer_ms) continue;
    for (size_t i = 0; i < kProbeWidths.size(); ++i) {
      TANDEM_TRY(positive(
          (*backend.layer_ms)[i], kMostMs,
          what + "'s time of a layer at width " + std::to_string(kProbeWidths[i]) + " in ms"));
    }
  }
  TANDEM_TRY(bytes_in_range(device.could_lend, who + "'s memory in all"));
  TANDEM_TRY(in_range(device.load_bytes_per_second, 0, kMostSpeed,
                      who + "'s speed of loading in bytes/s"));
  for (const LayerRange& range : device.cached) {
    if (range.first >= range.last || range.last > layers) {
      return invalid(who + " has cached layers [" + std::to_string(range.first) + ", " +
                     std::to_string(range.last) + "), the model has " + std::to_string(layers));
    }
  }
  return {};
}

}  // namespace

Status check_plan_input(const PlanInput& input) {
  TANDEM_TRY(check_model(input.model));
  const size_t layers = input.model.layers.size();
  if (input.devices.empty() || input.devices.size() > kMaxPlanDevices) {
    return invalid(std::to_string(input.devices.size()) + " devices, expected 1 to " +
                   std::to_string(kMaxPlanDevices));
  }
  std::set<std::string_view> ids;
  for (const PlanDevice& device : input.devices) {
    if (device.id.empty()) return invalid("a device without a name");
    if (!ids.insert(device.id).second) {
      return invalid("device " + device.id + " is there twice: its memory would count twice");
    }
    TANDEM_TRY(check_device(device, layers));
  }
  if (input.host >= input.devices.size()) {
    return invalid("the host is device " + std::to_string(input.host) + " of " +
                   std::to_string(input.devices.size()));
  }
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  for (const PlanLink& link : input.links) {
    if (link.a >= input.devices.size() || link.b >= input.devices.size() || link.a == link.b) {
      return invalid("a link between devices " + std::to_string(link.a) + " and " +
                     std::to_string(link.b) + " of " + std::to_string(input.devices.size()));
    }
    const std::string what =
        "the link between " + input.devices[link.a].id + " and " + input.devices[link.b].id;
    if (!pairs.insert(std::minmax(link.a, link.b)).second) return invalid(what + " is there twice");
    TANDEM_TRY(in_range(link.rtt_ms, 0, kMostRtt, what + ": its round trip in ms"));
    TANDEM_TRY(positive(link.bytes_per_second, kMostSpeed, what + ": its bytes/s"));
  }
  if (input.width < 1 || input.width > 4096) {
    return invalid("laps of " + std::to_string(input.width) + " tokens, expected 1 to 4096");
  }
  if (input.prompt < 1) return invalid("a prompt of 0 tokens");
  if (input.laps_per_load < 1) return invalid("a load for 0 laps");
  std::vector<LayerRange> ranges;
  std::set<uint32_t> used;
  for (const auto& [device, range] : input.manual) {
    if (device >= input.devices.size()) {
      return invalid("layers " + text(range) + " for device " + std::to_string(device) + " of " +
                     std::to_string(input.devices.size()));
    }
    if (device != input.host && !used.insert(device).second) {
      return invalid("device " + input.devices[device].id + " is given layers twice");
    }
    ranges.push_back(range);
  }
  return check_split(ranges, static_cast<uint32_t>(layers));
}

}  // namespace tandem::ring
