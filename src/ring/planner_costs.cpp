#include "ring/planner_costs.h"

#include <algorithm>

namespace tandem::ring {
namespace {

constexpr uint32_t kFrameBytes = 48;

}  // namespace

double at_width(const std::array<double, kProbeWidths.size()>& ms, double width) {
  size_t above = 1;
  while (above + 1 < kProbeWidths.size() && width > kProbeWidths[above]) ++above;
  const double left = kProbeWidths[above - 1];
  const double right = kProbeWidths[above];
  const double slope = (ms[above] - ms[above - 1]) / (right - left);
  // Noise can make a wider pass look faster than a narrow one; it can't make time run backwards.
  if (width > right) return ms[above] + std::max(slope, 0.0) * (width - right);
  return ms[above - 1] + slope * (width - left);
}

PlanCosts::PlanCosts(const PlanInput& input)
    : input_(input), layers_(static_cast<uint32_t>(input.model.layers.size())) {
  weights_.assign(layers_ + 1, 0);
  states_.assign(layers_ + 1, 0);
  work_.assign(layers_ + 1, 0);
  for (uint32_t i = 0; i < layers_; ++i) {
    const PlanLayer& layer = input.model.layers[i];
    weights_[i + 1] = weights_[i] + layer.weight_bytes;
    states_[i + 1] = states_[i] + layer.state_bytes;
    work_[i + 1] = work_[i] + layer.work;
  }
  const size_t count = input.devices.size();
  ways_.resize(count * count);
  for (const PlanLink& link : input.links) {
    ways_[link.a * count + link.b] = {link.rtt_ms, link.bytes_per_second};
    ways_[link.b * count + link.a] = {link.rtt_ms, link.bytes_per_second};
  }
  absence_.resize(count);
  choose_candidates();
  for (const uint32_t from : members_) {
    hops_.emplace_back();
    wires_.emplace_back();
    for (const uint32_t to : members_) {
      hops_.back().push_back(hop_ms(from, to, input.width));
      wires_.back().push_back(wire_ms(from, to, input.width));
    }
  }
}

std::array<double, kProbeWidths.size()> PlanCosts::phone_ms() const {
  std::array<double, kProbeWidths.size()> usual{};
  for (size_t i = 0; i < kProbeWidths.size(); ++i) {
    std::vector<double> measured;
    for (const PlanDevice& device : input_.devices) {
      if (device.kind != DeviceKind::kComputer) continue;
      double best = search::kNever;
      for (const PlanBackend& backend : device.backends) {
        if (backend.layer_ms) best = std::min(best, (*backend.layer_ms)[i]);
      }
      if (best < search::kNever) measured.push_back(best);
    }
    if (measured.empty()) return {};
    std::sort(measured.begin(), measured.end());
    usual[i] = kUnmeasuredPhone * measured[measured.size() / 2];
  }
  return usual;
}

void PlanCosts::choose_candidates() {
  std::vector<uint32_t> order{input_.host};
  for (uint32_t device = 0; device < input_.devices.size(); ++device) {
    if (device != input_.host) order.push_back(device);
  }
  members_.push_back(input_.host);
  const auto unmeasured_phone = phone_ms();
  for (const uint32_t index : order) {
    const PlanDevice& device = input_.devices[index];
    std::optional<LeftOut>& absence = absence_[index];
    if (device.state == DeviceState::kPaused) absence = LeftOut::kPaused;
    if (device.state == DeviceState::kLate) absence = LeftOut::kLate;
    if (!absence && hop_ms(input_.host, index, 1) == search::kNever) {
      absence = LeftOut::kUnreachable;
    }
    if (!absence) absence = LeftOut::kUnmeasured;
    for (uint32_t b = 0; b < device.backends.size(); ++b) {
      const PlanBackend& backend = device.backends[b];
      Candidate candidate;
      candidate.device = index;
      candidate.backend = b;
      candidate.memory = backend.memory;
      candidate.pass_ms = backend.pass_ms;
      uint64_t taken = backend.fixed_bytes;
      if (index == input_.host && b == 0) {
        taken += input_.model.ends_bytes + input_.model.draft_bytes;
        host_short_ = taken - std::min(taken, backend.memory);
      }
      candidate.room = backend.memory - std::min(taken, backend.memory);
      if (absence != LeftOut::kUnmeasured && absence != LeftOut::kTooSmall && absence) continue;
      bool any = false;
      for (uint32_t layer = 0; layer < layers_ && !any; ++layer) {
        any = fits(candidate, layer, layer + 1);
      }
      if (!any) {
        if (absence) absence = LeftOut::kTooSmall;
        continue;
      }
      if (backend.layer_ms) {
        candidate.layer_ms = *backend.layer_ms;
      } else if (device.kind == DeviceKind::kPhone && unmeasured_phone[0] > 0) {
        candidate.layer_ms = unmeasured_phone;
      } else {
        if (absence) absence = LeftOut::kUnmeasured;
        continue;
      }
      absence.reset();
      candidate.cost.assign(layers_ + 1, 0);
      const double ms = at_width(candidate.layer_ms, input_.width);
      for (uint32_t layer = 0; layer < layers_; ++layer) {
        candidate.cost[layer + 1] =
            candidate.cost[layer] + ms * (work_[layer + 1] - work_[layer]) +
            load_seconds(index, layer, layer + 1) * 1000 / input_.laps_per_load;
      }
      if (members_.back() != index) members_.push_back(index);
      candidates_.push_back(std::move(candidate));
    }
  }
}

bool PlanCosts::fits(const Candidate& candidate, uint32_t first, uint32_t last) const {
  const uint64_t weights = weight_bytes(first, last);
  // Scratch is there while the layers load, and the states once they are used.
  return weights + std::max(state_bytes(first, last), input_.model.load_bytes) <= candidate.room;
}

double PlanCosts::stage_ms(const Candidate& candidate, uint32_t first, uint32_t last,
                           double width) const {
  return candidate.pass_ms + at_width(candidate.layer_ms, width) * (work_[last] - work_[first]);
}

double PlanCosts::load(Objective objective, const Candidate& candidate, uint32_t first,
                       uint32_t last) const {
  if (objective == Objective::kThroughput) return stage_ms(candidate, first, last, input_.width);
  const uint64_t taken = candidate.memory - candidate.room;
  return static_cast<double>(taken + weight_bytes(first, last) + state_bytes(first, last)) /
         static_cast<double>(candidate.memory);
}

double PlanCosts::hop_ms(uint32_t from, uint32_t to, double width) const {
  if (from == to) return 0;
  const double bytes = kFrameBytes + width * (2.0 * input_.model.hidden_size + 2);
  const Way& direct = way(from, to);
  if (direct.bytes_per_second > 0) {
    return direct.rtt_ms / 2 + bytes / direct.bytes_per_second * 1000;
  }
  if (from == input_.host || to == input_.host) return search::kNever;
  return hop_ms(from, input_.host, width) + hop_ms(input_.host, to, width);
}

double PlanCosts::wire_ms(uint32_t from, uint32_t to, double width) const {
  if (from == to) return 0;
  const double bytes = kFrameBytes + width * (2.0 * input_.model.hidden_size + 2);
  const Way& direct = way(from, to);
  if (direct.bytes_per_second > 0) return bytes / direct.bytes_per_second * 1000;
  if (from == input_.host || to == input_.host) return search::kNever;
  return std::max(wire_ms(from, input_.host, width), wire_ms(input_.host, to, width));
}

double PlanCosts::load_seconds(uint32_t index, uint32_t first, uint32_t last) const {
  const PlanDevice& device = input_.devices[index];
  if (device.load_bytes_per_second <= 0) return 0;
  uint64_t bytes = 0;
  for (uint32_t layer = first; layer < last; ++layer) {
    const bool cached = std::any_of(
        device.cached.begin(), device.cached.end(),
        [&](const LayerRange& range) { return range.first <= layer && layer < range.last; });
    if (!cached) bytes += weight_bytes(layer, layer + 1);
  }
  return static_cast<double>(bytes) / device.load_bytes_per_second;
}

search::Problem PlanCosts::problem(Objective objective, double limit) const {
  search::Problem problem;
  problem.layers = layers_;
  problem.devices = static_cast<uint32_t>(members_.size());
  problem.hop = hops_;
  const bool bounded = objective != Objective::kFastest && limit < search::kNever;
  if (bounded && objective == Objective::kThroughput) {
    for (size_t from = 0; from < members_.size(); ++from) {
      for (size_t to = 0; to < members_.size(); ++to) {
        if (wires_[from][to] > limit) problem.hop[from][to] = search::kNever;
      }
    }
  }
  uint32_t member = 0;
  for (const Candidate& candidate : candidates_) {
    while (members_[member] != candidate.device) ++member;
    search::Choice choice;
    choice.device = member;
    choice.backend = candidate.backend;
    choice.fixed = candidate.pass_ms;
    choice.cost = candidate.cost;
    choice.start.resize(layers_ + 1);
    uint32_t start = 0;
    for (uint32_t end = 0; end <= layers_; ++end) {
      while (start < end && (!fits(candidate, start, end) ||
                             (bounded && load(objective, candidate, start, end) > limit))) {
        ++start;
      }
      choice.start[end] = start;
    }
    problem.choices.push_back(std::move(choice));
  }
  return problem;
}

}  // namespace tandem::ring
