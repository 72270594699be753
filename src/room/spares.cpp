#include "room/spares.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

namespace tandem::room {
namespace {

uint64_t bytes_of(const ring::PlanModel& model, ring::LayerRange layers) {
  uint64_t weights = 0;
  uint64_t states = 0;
  for (uint32_t layer = layers.first; layer < layers.last; ++layer) {
    weights += model.layers[layer].weight_bytes;
    states += model.layers[layer].state_bytes;
  }
  // The scratch of loading is free again before the states are used.
  return weights + std::max(states, model.load_bytes);
}

std::string machine_of(const Deal& deal, const std::string& label) {
  for (const Member& member : deal.members) {
    if (member.label == label) return member.machine;
  }
  return "";
}

}  // namespace

std::vector<ring::RingWorker> choose_spares(const Deal& deal,
                                            const std::vector<ring::RingWorker>& workers) {
  const ring::PlanModel& model = deal.input.model;
  std::vector<uint64_t> left;
  for (const Idle& idle : deal.idle) {
    const ring::PlanBackend& backend = deal.input.devices[idle.device].backends.front();
    uint64_t taken = backend.fixed_bytes;
    for (const ring::RingWorker& worker : workers) {
      if (worker.address == idle.worker.address) taken += bytes_of(model, worker.layers);
    }
    left.push_back(backend.memory - std::min(backend.memory, taken));
  }
  std::vector<ring::RingWorker> order = workers;
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return bytes_of(model, a.layers) > bytes_of(model, b.layers);
  });
  std::vector<ring::RingWorker> spares;
  for (const ring::RingWorker& worker : order) {
    const uint64_t need = bytes_of(model, worker.layers);
    const std::string machine = machine_of(deal, worker.label());
    size_t best = deal.idle.size();
    const auto worth = [&](size_t i) {
      const bool apart = deal.members[deal.idle[i].device - 1].machine != machine;
      return std::tuple(apart, left[i]);
    };
    for (size_t i = 0; i < deal.idle.size(); ++i) {
      if (deal.idle[i].worker.address == worker.address || left[i] < need) continue;
      if (best == deal.idle.size() || worth(i) > worth(best)) best = i;
    }
    if (best == deal.idle.size()) continue;
    left[best] -= need;
    spares.push_back(deal.idle[best].worker);
    spares.back().layers = worker.layers;
  }
  return spares;
}

}  // namespace tandem::room
