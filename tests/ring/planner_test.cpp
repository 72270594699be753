// The planner against plain enumeration of all splits, on random rooms.
#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "ring/planner_costs.h"
#include "ring/planner_search.h"
#include "ring/planner_support.h"

namespace tandem::ring {
namespace {

using namespace planner_test;

constexpr double kNever = std::numeric_limits<double>::infinity();

using Random = std::mt19937_64;

uint32_t below(Random& random, uint32_t limit) {
  return static_cast<uint32_t>(random() % limit);
}
double between(Random& random, double low, double high) {
  return low + (high - low) * static_cast<double>(random() % 100000) / 100000;
}

// What a split is worth, reckoned from the input alone.
struct Reckoned {
  double load = 0;  ///< of the slowest or fullest; 0 where only the lap counts
  double lap = 0;   ///< with the loads' share
};

struct Piece {
  uint32_t device, backend, first, last;
};

std::optional<double> hop(const PlanInput& input, uint32_t a, uint32_t b, bool wire) {
  if (a == b) return 0;
  const double bytes = 48 + input.width * (2.0 * input.model.hidden_size + 2);
  for (const PlanLink& link : input.links) {
    if ((link.a == a && link.b == b) || (link.a == b && link.b == a)) {
      const double push = bytes / link.bytes_per_second * 1000;
      return wire ? push : link.rtt_ms / 2 + push;
    }
  }
  if (a == input.host || b == input.host) return std::nullopt;
  const auto first = hop(input, a, input.host, wire);
  const auto second = hop(input, input.host, b, wire);
  if (!first || !second) return std::nullopt;
  return wire ? std::max(*first, *second) : *first + *second;
}

std::optional<Reckoned> reckon(const PlanInput& input, const std::vector<Piece>& pieces) {
  Reckoned result;
  result.lap = input.model.host_ms;
  uint32_t before = input.host;
  auto go = [&](uint32_t to) {
    const auto cost = hop(input, before, to, false);
    if (!cost) return false;
    result.lap += *cost;
    if (input.objective == Objective::kThroughput) {
      result.load = std::max(result.load, *hop(input, before, to, true));
    }
    before = to;
    return true;
  };
  for (const Piece& piece : pieces) {
    const PlanDevice& device = input.devices[piece.device];
    const PlanBackend& backend = device.backends[piece.backend];
    if (device.state != DeviceState::kReady || !backend.layer_ms) return std::nullopt;
    if (!hop(input, input.host, piece.device, false)) return std::nullopt;  // can't be asked
    if (!go(piece.device)) return std::nullopt;
    uint64_t weights = 0;
    uint64_t states = 0;
    double work = 0;
    double missing = 0;
    for (uint32_t layer = piece.first; layer < piece.last; ++layer) {
      weights += input.model.layers[layer].weight_bytes;
      states += input.model.layers[layer].state_bytes;
      work += input.model.layers[layer].work;
      bool cached = false;
      for (const LayerRange& range : device.cached) {
        cached = cached || (layer >= range.first && layer < range.last);
      }
      if (!cached) missing += static_cast<double>(input.model.layers[layer].weight_bytes);
    }
    uint64_t taken = backend.fixed_bytes;
    if (piece.device == input.host && piece.backend == 0) {
      taken += input.model.ends_bytes + input.model.draft_bytes;
    }
    if (taken + weights + std::max(states, input.model.load_bytes) > backend.memory) {
      return std::nullopt;
    }
    const double pass = backend.pass_ms + work * at_width(*backend.layer_ms, input.width);
    result.lap += pass;
    if (device.load_bytes_per_second > 0) {
      result.lap += missing / device.load_bytes_per_second * 1000 / input.laps_per_load;
    }
    if (input.objective == Objective::kThroughput) result.load = std::max(result.load, pass);
    if (input.objective == Objective::kMemory) {
      result.load = std::max(result.load, static_cast<double>(taken + weights + states) /
                                              static_cast<double>(backend.memory));
    }
  }
  if (!go(input.host)) return std::nullopt;
  return result;
}

/// All subsets, orders, cuts and backends.
std::optional<Reckoned> enumerate(const PlanInput& input) {
  const auto layers = static_cast<uint32_t>(input.model.layers.size());
  const uint64_t host_taken = input.model.ends_bytes + input.model.draft_bytes +
                              input.devices[input.host].backends[0].fixed_bytes;
  if (host_taken > input.devices[input.host].backends[0].memory) return std::nullopt;
  std::optional<Reckoned> best;
  std::vector<Piece> pieces;
  std::vector<bool> used(input.devices.size(), false);
  const std::function<void(uint32_t)> extend = [&](uint32_t first) {
    if (first == layers) {
      const auto one = reckon(input, pieces);
      if (!one) return;
      const double slack = best ? 1e-9 * (1 + best->load) : 0;
      if (!best || one->load < best->load - slack ||
          (one->load <= best->load + slack && one->lap < best->lap)) {
        best = one;
      }
      return;
    }
    for (uint32_t d = 0; d < input.devices.size(); ++d) {
      if (used[d]) continue;
      used[d] = true;
      for (uint32_t b = 0; b < input.devices[d].backends.size(); ++b) {
        for (uint32_t last = first + 1; last <= layers; ++last) {
          pieces.push_back({d, b, first, last});
          extend(last);
          pieces.pop_back();
        }
      }
      used[d] = false;
    }
  };
  extend(0);
  return best;
}

PlanInput random_input(Random& random) {
  PlanInput input;
  const uint32_t layers = 1 + below(random, 6);
  const uint32_t devices = 1 + below(random, 4);
  const bool same_layers = below(random, 2) == 0;
  const bool same_links = below(random, 2) == 0;
  input.model = model(layers);
  for (PlanLayer& layer : input.model.layers) {
    if (same_layers) continue;
    layer.weight_bytes = 50 + below(random, 100);
    layer.state_bytes = below(random, 50);
    layer.work = between(random, 0.5, 2);
  }
  input.model.load_bytes = below(random, 2) * below(random, 60);
  input.objective = static_cast<Objective>(below(random, 3));
  input.width = below(random, 2) == 0 ? 1 : 1 + below(random, 100);
  input.host = below(random, devices);
  for (uint32_t d = 0; d < devices; ++d) {
    PlanDevice one = device("d" + std::to_string(d), 60 + below(random, 110 * layers + 1),
                            between(random, 0.1, 3));
    one.backends[0].pass_ms = between(random, 0, 0.3);
    one.backends[0].fixed_bytes = below(random, 30);
    if (below(random, 3) == 0) {
      one.backends.push_back({"gpu", 60 + below(random, 110 * layers + 1), below(random, 30),
                              between(random, 0, 1), ms(between(random, 0.02, 1))});
    }
    if (!same_layers && below(random, 3) == 0) {
      one.load_bytes_per_second = 1 + below(random, 1000);
      const uint32_t first = below(random, layers);
      one.cached.push_back({first, first + 1 + below(random, layers - first)});
      input.laps_per_load = 1000;
    }
    if (below(random, 12) == 0) one.state = DeviceState::kPaused;
    input.devices.push_back(std::move(one));
  }
  const double rtt = between(random, 0, 2);
  for (uint32_t a = 0; a < devices; ++a) {
    for (uint32_t b = a + 1; b < devices; ++b) {
      if (!same_links && below(random, 6) == 0) continue;
      input.links.push_back({a, b, same_links ? rtt : between(random, 0, 2),
                             same_links ? 1e6 : between(random, 1e4, 1e7)});
    }
  }
  return input;
}

std::vector<Piece> pieces_of(const Plan& plan) {
  std::vector<Piece> pieces;
  for (const PlanStage& stage : plan.stages) {
    pieces.push_back({stage.device, stage.backend, stage.layers.first, stage.layers.last});
  }
  return pieces;
}

TEST(Planner, EqualsEnumerationOnRandomRooms) {
  Random random(2026);
  int planned = 0;
  int split = 0;
  for (int i = 0; i < 3000; ++i) {
    const PlanInput input = random_input(random);
    const auto expected = enumerate(input);
    const auto result = plan(input);
    ASSERT_TRUE(result.ok()) << result.error().message;
    ASSERT_EQ(expected.has_value(), !result->shortage.has_value()) << "case " << i;
    if (!expected) continue;
    ++planned;
    split += result->stages.size() > 1 ? 1 : 0;
    const auto reached = reckon(input, pieces_of(*result));
    ASSERT_TRUE(reached.has_value()) << "case " << i;
    EXPECT_TRUE(result->proved) << "case " << i;
    EXPECT_NEAR(reached->load, expected->load, 1e-8 * (1 + expected->load)) << "case " << i;
    EXPECT_NEAR(reached->lap, expected->lap, 1e-8 * expected->lap) << "case " << i;
    EXPECT_LE(result->lap_ms, reached->lap * (1 + 1e-9));  // the lap has no share of the loads
  }
  EXPECT_GT(planned, 1000);
  EXPECT_GT(split, 400);
}

// The bound for many devices must never be above the optimum, nor the split found below it.
TEST(Planner, SitesBoundTheOptimumFromBelow) {
  Random random(7);
  int tight = 0;
  for (int i = 0; i < 600; ++i) {
    PlanInput input = random_input(random);
    input.objective = Objective::kFastest;
    const PlanCosts costs(input);
    const auto problem = costs.problem(input.objective, kNever);
    const auto exact = search::by_subsets(problem);
    const auto sites = search::by_sites(problem);
    const auto ordered = search::in_order(problem, sites.order);
    if (exact.cost == kNever) {
      EXPECT_EQ(ordered.cost, kNever);
      continue;
    }
    EXPECT_LE(sites.bound, exact.cost * (1 + 1e-9)) << "case " << i;
    EXPECT_GE(ordered.cost, exact.cost * (1 - 1e-9)) << "case " << i;
    tight += ordered.cost <= sites.bound * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_GT(tight, 100);
}

PlanInput many(uint32_t devices, uint32_t layers, uint32_t sites) {
  PlanInput input;
  Random random(devices + sites);
  input.model = model(layers);
  for (uint32_t d = 0; d < devices; ++d) {
    input.devices.push_back(device("d" + std::to_string(d), 120 * (2 + below(random, 4)) + 50,
                                   between(random, 0.2, 2)));
  }
  for (uint32_t a = 0; a < devices; ++a) {
    for (uint32_t b = a + 1; b < devices; ++b) {
      const bool near = a % sites == b % sites;
      input.links.push_back({a, b, near ? 0.2 : 10.0 + (a % sites + b % sites), 1e8});
    }
  }
  return input;
}

TEST(Planner, ProvesTheOptimumForManyDevicesOfSites) {
  for (const uint32_t sites : {1u, 2u, 4u, 8u}) {
    for (const auto objective : {Objective::kFastest, Objective::kThroughput, Objective::kMemory}) {
      PlanInput input = many(64, 128, sites);
      input.objective = objective;
      const auto result = plan(input);
      ASSERT_TRUE(result.ok());
      ASSERT_FALSE(result->shortage);
      EXPECT_TRUE(result->proved) << sites << " sites, " << name(objective) << ", beyond "
                                  << result->beyond_ms << " ms, " << result->beyond_load;
      EXPECT_EQ(result->stages.back().layers.last, 128u);
    }
  }
}

TEST(Planner, SaysHowFarItMayBeFromTheOptimumWhereItIsNotProved) {
  PlanInput input = many(40, 90, 3);
  Random random(3);
  for (PlanLink& link : input.links) link.rtt_ms *= between(random, 0.8, 1.2);
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->shortage);
  EXPECT_TRUE(result->proved || result->beyond_ms > 0);
  EXPECT_LT(result->beyond_ms, 0.25 * result->lap_ms);
}

}  // namespace
}  // namespace tandem::ring
