#include "ring/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ring/planner_check.h"
#include "ring/planner_costs.h"
#include "ring/planner_search.h"

namespace tandem::ring {
namespace {

using search::kNever;
using search::Problem;
using search::Solution;

/// Halvings of an interval of loads: enough for the last bits of a double.
constexpr int kHalvings = 60;
/// Where each try costs a search of its own.
constexpr int kFewHalvings = 16;

struct Found {
  Solution solution;
  bool proved = false;
  double beyond_ms = 0;
  double beyond_load = 1;
};

/// No split under the limit if this is false: all devices together, each with its longest run.
bool may_hold(const Problem& problem) {
  std::vector<uint32_t> longest(problem.devices, 0);
  for (const auto& choice : problem.choices) {
    const uint32_t device = choice.device;
    auto connected = [&](bool into) {
      for (uint32_t other = 0; other < problem.devices; ++other) {
        if ((other != device || device == 0) &&
            (into ? problem.hop[other][device] : problem.hop[device][other]) < kNever) {
          return true;
        }
      }
      return false;
    };
    if (!connected(true) || !connected(false)) continue;
    for (uint32_t end = 1; end <= problem.layers; ++end) {
      longest[device] = std::max(longest[device], end - choice.start[end]);
    }
  }
  return std::accumulate(longest.begin(), longest.end(), uint64_t{0}) >= problem.layers;
}

std::vector<uint32_t> any_order(const Problem& problem) {
  std::vector<uint32_t> order(problem.devices);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// True only if a split exists; false may be wrong for problems that are not small.
bool holds(const Problem& problem) {
  if (!may_hold(problem)) return false;
  if (search::in_order(problem, any_order(problem)).cost < kNever) return true;
  return search::small_enough(problem) && search::reach_by_subsets(problem) == problem.layers;
}

double greatest_load(const PlanCosts& costs, Objective objective, const Solution& solution) {
  double greatest = 0;
  for (const auto& step : solution.steps) {
    greatest = std::max(
        greatest, costs.load(objective, costs.candidates()[step.choice], step.first, step.last));
  }
  return greatest;
}

/// The least value in (low, high] for which `good` holds, to the last bits; it must hold for high.
template <typename Good>
double least(double low, double high, int halvings, const Good& good) {
  for (int i = 0; i < halvings && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (good(middle) ? high : low) = middle;
  }
  return high;
}

Found find(const PlanCosts& costs, Objective objective) {
  const Problem all = costs.problem(objective, kNever);
  auto take = [](search::Best best) {
    Found found;
    found.proved = best.proved;
    found.beyond_ms = std::max(0.0, best.solution.cost - best.bound);
    found.solution = std::move(best.solution);
    return found;
  };
  Found free = take(search::best(all));
  if (objective == Objective::kFastest || free.solution.cost == kNever) return free;

  double high = greatest_load(costs, objective, free.solution);
  if (objective == Objective::kThroughput) {
    for (size_t i = 0; i <= free.solution.steps.size(); ++i) {
      auto device = [&](size_t at) {
        return at < free.solution.steps.size()
                   ? costs.candidates()[free.solution.steps[at].choice].device
                   : costs.members().front();
      };
      high = std::max(
          high, costs.wire_ms(i == 0 ? costs.members().front() : device(i - 1), device(i), 1));
      high = std::max(high, costs.wire_ms(device(0), costs.members().front(), 1));
    }
    high = high * (1 + 1e-12) + 1e-12;
    while (!holds(costs.problem(objective, high))) high *= 2;
  }
  auto limited = [&](double limit) { return costs.problem(objective, limit); };
  const double bound =
      least(0, high, kHalvings, [&](double limit) { return may_hold(limited(limit)); });
  Found found = take(search::best(limited(bound)));
  if (found.solution.cost < kNever) return found;
  if (search::small_enough(all)) {
    const double limit = least(bound, high, kHalvings, [&](double value) {
      return search::reach_by_subsets(limited(value)) == costs.layers();
    });
    return take(search::best(limited(limit)));
  }
  const double limit =
      least(bound, high, kFewHalvings, [&](double value) { return holds(limited(value)); });
  found = take(search::best(limited(limit)));
  if (found.solution.cost == kNever) return free;
  found.proved = false;
  found.beyond_load = limit / bound;
  return found;
}

/// Layers from the first on that can be held.
uint32_t layers_held(const Problem& problem) {
  if (search::small_enough(problem)) return search::reach_by_subsets(problem);
  uint32_t low = 0;
  for (uint32_t high = problem.layers; low < high;) {
    const uint32_t middle = (low + high + 1) / 2;
    Problem part = problem;
    part.layers = middle;
    if (search::in_order(part, any_order(part)).cost < kNever) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

bool fits_with(const PlanInput& input) {
  const PlanCosts costs(input);
  return costs.host_short() == 0 && holds(costs.problem(Objective::kFastest, kNever));
}

Short shortage(const PlanInput& input, const PlanCosts& costs) {
  Short result;
  result.layers_needed = costs.layers();
  result.layers_held = layers_held(costs.problem(Objective::kFastest, kNever));
  result.host_too_small = costs.host_short() > 0;
  result.bytes_short = costs.host_short() +
                       costs.weight_bytes(result.layers_held, result.layers_needed) +
                       costs.state_bytes(result.layers_held, result.layers_needed);
  for (uint32_t i = 0; i < input.devices.size(); ++i) {
    const PlanDevice& device = input.devices[i];
    PlanInput more = input;
    uint64_t extra = 0;
    if (device.state == DeviceState::kPaused || device.state == DeviceState::kLate) {
      more.devices[i].state = DeviceState::kReady;
      extra = device.backends[0].memory;
    }
    if (device.could_lend > device.backends[0].memory) {
      more.devices[i].backends[0].memory = device.could_lend;
      extra += device.could_lend - device.backends[0].memory;
    }
    if (extra > 0) result.could_lend.push_back({i, extra, fits_with(more)});
  }
  for (const ContextOption& option : input.model.smaller) {
    PlanInput smaller = input;
    for (uint32_t layer = 0; layer < costs.layers(); ++layer) {
      smaller.model.layers[layer].state_bytes = option.state_bytes[layer];
    }
    if (!fits_with(smaller)) continue;
    result.context_fits = option.context;
    break;
  }
  PlanInput narrow = input;
  bool known = true;
  bool less = false;
  for (PlanLayer& layer : narrow.model.layers) {
    known = known && layer.weight_bytes_4 != 0;
    less = less || layer.weight_bytes_4 < layer.weight_bytes;
    layer.weight_bytes = layer.weight_bytes_4;
  }
  result.four_bits_fit = known && less && fits_with(narrow);
  return result;
}

/// The user's ranges as steps over candidates. Errors: kInvalid (a device that has no part, or is
/// too small for its range).
Result<Solution> manual_steps(const PlanInput& input, const PlanCosts& costs) {
  std::vector<std::pair<uint32_t, LayerRange>> ranges;
  uint32_t next = 0;
  for (const auto& entry : input.manual) {
    if (entry.second.first > next) ranges.push_back({input.host, {next, entry.second.first}});
    ranges.push_back(entry);
    next = entry.second.last;
  }
  if (next < costs.layers()) ranges.push_back({input.host, {next, costs.layers()}});
  Solution solution;
  uint64_t host_bytes = 0;
  for (const auto& [device, range] : ranges) {
    const std::string who = "device " + input.devices[device].id;
    if (const auto absence = costs.absence(device)) {
      return invalid(who + " can't hold layers " + text(range) + ": it is " +
                     std::string(name(*absence)));
    }
    std::optional<uint32_t> best;
    for (uint32_t i = 0; i < costs.candidates().size(); ++i) {
      const auto& candidate = costs.candidates()[i];
      if (candidate.device != device || !costs.fits(candidate, range.first, range.last)) continue;
      if (best &&
          costs.stage_ms(candidate, range.first, range.last, input.width) >=
              costs.stage_ms(costs.candidates()[*best], range.first, range.last, input.width)) {
        continue;
      }
      best = i;
    }
    const uint64_t bytes =
        costs.weight_bytes(range.first, range.last) + costs.state_bytes(range.first, range.last);
    if (device == input.host) host_bytes += bytes;
    if (!best || (device == input.host && host_bytes > costs.candidates()[*best].room)) {
      return Error{ErrorKind::kMemory,
                   who + " lends too little for layers " + text(range) + ", which need " +
                       std::to_string(device == input.host ? host_bytes : bytes) + " bytes"};
    }
    solution.steps.push_back({*best, range.first, range.last});
  }
  solution.cost = 0;
  return solution;
}

void predict(const PlanInput& input, const PlanCosts& costs, const Solution& solution, Plan& plan) {
  const auto stages = static_cast<uint32_t>(solution.steps.size());
  const double frame = std::min(frame_tokens(input.prompt, stages), input.prompt);
  const double frames = std::ceil(input.prompt / frame);
  double way = 0;      // of one frame of the prompt, hops and passes
  double busiest = 0;  // what holds up the frame behind it
  plan.lap_ms = input.model.host_ms;
  plan.slowest_ms = input.model.host_ms;
  uint32_t before = input.host;
  auto hop = [&](uint32_t to) {
    const double ms = costs.hop_ms(before, to, input.width);
    plan.lap_ms += ms;
    plan.slowest_ms = std::max(plan.slowest_ms, costs.wire_ms(before, to, input.width));
    way += costs.hop_ms(before, to, frame);
    busiest = std::max(busiest, costs.wire_ms(before, to, frame));
    before = to;
    return ms;
  };
  double on_host = input.model.host_token_ms * frame;
  for (const auto& step : solution.steps) {
    const auto& candidate = costs.candidates()[step.choice];
    PlanStage stage;
    stage.device = candidate.device;
    stage.backend = candidate.backend;
    stage.layers = {step.first, step.last};
    stage.weight_bytes = costs.weight_bytes(step.first, step.last);
    stage.state_bytes = costs.state_bytes(step.first, step.last);
    stage.hop_ms = hop(candidate.device);
    stage.ms = costs.stage_ms(candidate, step.first, step.last, input.width);
    plan.lap_ms += stage.ms;
    plan.slowest_ms = std::max(plan.slowest_ms, stage.ms);
    const double ms = costs.stage_ms(candidate, step.first, step.last, frame);
    way += ms;
    if (candidate.device == input.host) on_host += ms;
    busiest = std::max(busiest, ms);
    plan.load_seconds =
        std::max(plan.load_seconds, costs.load_seconds(candidate.device, step.first, step.last));
    plan.stages.push_back(stage);
  }
  hop(input.host);
  busiest = std::max(busiest, on_host);
  plan.decode_tokens_per_second = 1000 / plan.lap_ms;
  plan.prefill_tokens_per_second =
      input.prompt * 1000.0 /
      (way + busiest * (frames - 1) + input.model.host_token_ms * frame + input.model.host_ms);
}

void find_faster_alone(const PlanInput& input, const PlanCosts& costs, Plan& plan) {
  if (plan.stages.size() < 2) return;
  double best = plan.lap_ms * (1 - 1e-9);
  for (const auto& candidate : costs.candidates()) {
    if (!costs.fits(candidate, 0, costs.layers())) continue;
    const double lap = input.model.host_ms +
                       costs.hop_ms(input.host, candidate.device, input.width) +
                       costs.stage_ms(candidate, 0, costs.layers(), input.width) +
                       costs.hop_ms(candidate.device, input.host, input.width);
    if (lap >= best) continue;
    best = lap;
    plan.faster_alone = candidate.device;
    plan.alone_tokens_per_second = 1000 / lap;
  }
}

}  // namespace

std::string_view name(Objective objective) {
  switch (objective) {
    case Objective::kFastest:
      return "fastest";
    case Objective::kThroughput:
      return "throughput";
    case Objective::kMemory:
      return "memory";
  }
  return "";
}

Result<Objective> parse_objective(std::string_view text) {
  for (const auto objective : {Objective::kFastest, Objective::kThroughput, Objective::kMemory}) {
    if (text == name(objective)) return objective;
  }
  return invalid("unknown objective '" + std::string(text.substr(0, 64)) +
                 "', expected fastest, throughput or memory");
}

std::string_view name(LeftOut reason) {
  switch (reason) {
    case LeftOut::kUnneeded:
      return "unneeded";
    case LeftOut::kTooSmall:
      return "too small";
    case LeftOut::kUnmeasured:
      return "unmeasured";
    case LeftOut::kUnreachable:
      return "unreachable";
    case LeftOut::kPaused:
      return "paused";
    case LeftOut::kLate:
      return "late";
  }
  return "";
}

Result<Plan> plan(const PlanInput& input) {
  TANDEM_TRY(check_plan_input(input));
  const PlanCosts costs(input);
  Plan result;
  Found found;
  if (!input.manual.empty()) {
    if (costs.host_short() > 0) {
      return Error{ErrorKind::kMemory, "device " + input.devices[input.host].id + " lends " +
                                           std::to_string(costs.host_short()) +
                                           " bytes too little for the embedding and the head"};
    }
    TANDEM_ASSIGN(found.solution, manual_steps(input, costs));
  } else if (costs.host_short() == 0) {
    found = find(costs, input.objective);
  }
  for (uint32_t i = 0; i < input.devices.size(); ++i) {
    const bool used =
        std::any_of(found.solution.steps.begin(), found.solution.steps.end(),
                    [&](const auto& step) { return costs.candidates()[step.choice].device == i; });
    if (used) continue;
    result.left_out.emplace_back(i, costs.absence(i).value_or(LeftOut::kUnneeded));
  }
  if (found.solution.cost == kNever) {
    result.shortage = shortage(input, costs);
    return result;
  }
  result.proved = found.proved;
  result.beyond_ms = found.beyond_ms;
  result.beyond_load = found.beyond_load;
  predict(input, costs, found.solution, result);
  find_faster_alone(input, costs, result);
  return result;
}

Result<bool> worth_redeal(const PlanInput& input, double gain) {
  if (!(gain >= 1) || !std::isfinite(gain)) return invalid("a re-deal needs a gain of 1 or more");
  if (input.manual.empty()) return invalid("no split runs that could be dealt anew");
  const auto now = plan(input);
  if (!now.ok() && now.error().kind != ErrorKind::kMemory) return now.error();
  PlanInput free = input;
  free.manual.clear();
  TANDEM_ASSIGN(const Plan better, plan(free));
  if (better.shortage) return false;
  if (!now.ok()) return true;  // a device lends less than it holds
  const bool pace = input.objective == Objective::kThroughput;
  return (pace ? now->slowest_ms : now->lap_ms) >=
         gain * (pace ? better.slowest_ms : better.lap_ms);
}

Result<PlanInput> without(const PlanInput& input, std::string_view id) {
  const auto at = std::find_if(input.devices.begin(), input.devices.end(),
                               [&](const PlanDevice& device) { return device.id == id; });
  const std::string shown(id.substr(0, 64));
  if (at == input.devices.end()) return invalid("there is no device " + shown);
  const auto gone = static_cast<uint32_t>(at - input.devices.begin());
  if (gone == input.host) return invalid("device " + shown + " is the host");
  PlanInput result = input;
  result.devices.erase(result.devices.begin() + gone);
  auto moved = [&](uint32_t index) { return index > gone ? index - 1 : index; };
  std::erase_if(result.links,
                [&](const PlanLink& link) { return link.a == gone || link.b == gone; });
  std::erase_if(result.manual, [&](const auto& entry) { return entry.first == gone; });
  for (PlanLink& link : result.links) {
    link.a = moved(link.a);
    link.b = moved(link.b);
  }
  for (auto& entry : result.manual) entry.first = moved(entry.first);
  result.host = moved(result.host);
  return result;
}

Result<PlanInput> with(const PlanInput& input, uint64_t bytes, double layer_ms) {
  TANDEM_TRY(check_plan_input(input));
  PlanInput result = input;
  PlanDevice device;
  for (int number = 1; device.id.empty(); ++number) {
    const std::string id = number == 1 ? "new" : "new-" + std::to_string(number);
    if (std::none_of(input.devices.begin(), input.devices.end(),
                     [&](const PlanDevice& one) { return one.id == id; })) {
      device.id = id;
    }
  }
  PlanBackend backend;
  backend.memory = bytes;
  std::array<double, kProbeWidths.size()> ms{};
  const auto& known = input.devices[input.host].backends[0].layer_ms;
  for (size_t i = 0; i < ms.size(); ++i) {
    ms[i] = layer_ms * (known ? (*known)[i] / (*known)[0] : kProbeWidths[i]);
  }
  backend.layer_ms = ms;
  device.backends.push_back(backend);
  result.devices.push_back(std::move(device));
  const auto index = static_cast<uint32_t>(input.devices.size());
  PlanLink link{0, index, 1, 1e8};
  const auto best =
      std::min_element(input.links.begin(), input.links.end(),
                       [](const PlanLink& a, const PlanLink& b) { return a.rtt_ms < b.rtt_ms; });
  if (best != input.links.end()) {
    link.rtt_ms = best->rtt_ms;
    link.bytes_per_second = best->bytes_per_second;
  }
  for (uint32_t other = 0; other < index; ++other) {
    link.a = other;
    result.links.push_back(link);
  }
  TANDEM_TRY(check_plan_input(result));
  return result;
}

}  // namespace tandem::ring
