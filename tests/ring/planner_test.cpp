// The planner against plain enumeration, and the cases that broke other planners.
#include "ring/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "ring/planner_costs.h"
#include "ring/planner_search.h"

namespace tandem::ring {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

using Random = std::mt19937_64;

uint32_t below(Random& random, uint32_t limit) {
  return static_cast<uint32_t>(random() % limit);
}
double between(Random& random, double low, double high) {
  return low + (high - low) * static_cast<double>(random() % 100000) / 100000;
}

std::array<double, 4> ms(double one) {
  return {one, one * 1.5, one * 4, one * 12};
}

PlanDevice device(const std::string& id, uint64_t memory, double layer_ms) {
  PlanDevice device;
  device.id = id;
  device.backends.push_back({"cpu", memory, 0, 0, ms(layer_ms)});
  return device;
}

PlanModel model(uint32_t layers, uint64_t weight_bytes = 100, uint64_t state_bytes = 10) {
  PlanModel model;
  model.hidden_size = 64;
  model.context = 4096;
  model.layers.assign(layers, {weight_bytes, weight_bytes * 6 / 10, state_bytes, 1});
  model.ends_bytes = 50;
  model.host_ms = 0.5;
  return model;
}

void link_all(PlanInput& input, double rtt_ms, double bytes_per_second = 1e9) {
  for (uint32_t a = 0; a < input.devices.size(); ++a) {
    for (uint32_t b = a + 1; b < input.devices.size(); ++b) {
      input.links.push_back({a, b, rtt_ms, bytes_per_second});
    }
  }
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

TEST(Planner, GivesNoLayerToADeviceThatItDoesNotFit) {
  // Shares in proportion to memory, rounded, would give the small one two.
  PlanInput input;
  input.model = model(10);
  input.objective = Objective::kMemory;
  input.devices = {device("big", 50 + 110 * 8 + 60, 1), device("small", 110 * 2 - 1, 1),
                   device("other", 110 + 5, 1)};
  link_all(input, 1);
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->shortage);
  for (const PlanStage& stage : result->stages) {
    EXPECT_TRUE(stage.device != 1 || stage.layers.count() == 1);
  }
}

TEST(Planner, FillsDevicesInProportionToWhatTheyLend) {
  PlanInput input;
  input.model = model(30);
  input.model.ends_bytes = 0;
  input.objective = Objective::kMemory;
  input.devices = {device("a", 110 * 30, 1), device("b", 110 * 60, 5), device("c", 110 * 60, 1)};
  link_all(input, 1);
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->stages.size(), 3u);
  for (const PlanStage& stage : result->stages) {
    EXPECT_EQ(stage.layers.count(), stage.device == 0 ? 6u : 12u);
  }
  ASSERT_TRUE(result->faster_alone.has_value());
  EXPECT_EQ(*result->faster_alone, 0u);  // it fits all thirty
  EXPECT_GT(result->alone_tokens_per_second, result->decode_tokens_per_second);
}

TEST(Planner, CountsStatesEndsDraftAndScratch) {
  PlanInput input;
  input.model = model(4);
  const uint64_t needed = 50 + 4 * 110;
  input.devices = {device("host", needed, 1)};
  EXPECT_FALSE(plan(input)->shortage);
  input.devices[0].backends[0].memory = needed - 1;
  EXPECT_TRUE(plan(input)->shortage);
  input.devices[0].backends[0].memory = needed;
  input.model.draft_bytes = 1;
  EXPECT_TRUE(plan(input)->shortage);
  input.model.draft_bytes = 0;
  input.model.load_bytes = 40;  // as much as the states, which come when it is free again
  EXPECT_FALSE(plan(input)->shortage);
  input.model.load_bytes = 41;
  EXPECT_TRUE(plan(input)->shortage);
}

TEST(Planner, ThroughputDoesNotWaitForTheSlowest) {
  PlanInput input;
  input.model = model(12);
  input.objective = Objective::kThroughput;
  input.devices = {device("fast", 5000, 1), device("slow", 5000, 5)};
  link_all(input, 0.1);
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->stages.size(), 2u);
  for (const PlanStage& stage : result->stages) {
    EXPECT_EQ(stage.layers.count(), stage.device == 0 ? 10u : 2u);
  }
  EXPECT_DOUBLE_EQ(result->slowest_ms, 10);
  EXPECT_EQ(result->faster_alone, std::optional<uint32_t>(0));
}

TEST(Planner, AFastAnswerTakesFewHops) {
  PlanInput input;
  input.model = model(12);
  input.devices = {device("host", 50 + 110 * 4, 1), device("a", 110 * 4, 1),
                   device("b", 110 * 8, 1.1), device("c", 110 * 4, 1)};
  link_all(input, 10);
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->stages.size(), 2u);
  EXPECT_EQ(result->stages[1].device, 2u);
  EXPECT_EQ(result->left_out, (std::vector<std::pair<uint32_t, LeftOut>>{{1, LeftOut::kUnneeded},
                                                                         {3, LeftOut::kUnneeded}}));
}

TEST(Planner, AnyNumberOfDevicesWill) {
  for (uint32_t count = 1; count <= 9; ++count) {
    PlanInput input;
    input.model = model(7);
    for (uint32_t i = 0; i < count; ++i) {
      input.devices.push_back(device("d" + std::to_string(i), 50 + 110 * 7, 1));
    }
    link_all(input, 1);
    const auto result = plan(input);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->stages.size(), 1u);
    EXPECT_FALSE(result->faster_alone);
  }
}

TEST(Planner, SaysWhatIsShortAndWhatWouldHelp) {
  PlanInput input;
  input.model = model(10, 100, 100);
  input.model.smaller = {{2048, std::vector<uint64_t>(10, 50)},
                         {1024, std::vector<uint64_t>(10, 25)}};
  input.devices = {device("host", 50 + 200 * 2, 1), device("a", 200 * 4, 1),
                   device("b", 200 * 2, 1)};
  input.devices[1].could_lend = 200 * 5;
  input.devices[2].could_lend = 200 * 4;
  link_all(input, 1);
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  ASSERT_TRUE(result->shortage.has_value());
  const Short& shortage = *result->shortage;
  EXPECT_EQ(shortage.layers_held, 8u);
  EXPECT_EQ(shortage.layers_needed, 10u);
  EXPECT_EQ(shortage.bytes_short, 400u);
  EXPECT_FALSE(shortage.host_too_small);
  ASSERT_EQ(shortage.could_lend.size(), 2u);
  EXPECT_EQ(shortage.could_lend[0].bytes, 200u);
  EXPECT_FALSE(shortage.could_lend[0].enough);
  EXPECT_EQ(shortage.could_lend[1].bytes, 400u);
  EXPECT_TRUE(shortage.could_lend[1].enough);
  EXPECT_EQ(shortage.context_fits, 1024u);  // at 2048 the gaps are too small for a tenth layer
  EXPECT_FALSE(shortage.four_bits_fit);
  EXPECT_TRUE(result->stages.empty());
  for (PlanLayer& layer : input.model.layers) layer.weight_bytes_4 = 30;
  EXPECT_TRUE(plan(input)->shortage->four_bits_fit);
}

TEST(Planner, SaysThatTheHostIsTooSmallForItsOwnPart) {
  PlanInput input;
  input.model = model(2);
  input.devices = {device("host", 20, 1), device("a", 1000, 1)};
  input.devices[0].could_lend = 400;
  link_all(input, 1);
  const auto result = plan(input);
  ASSERT_TRUE(result->shortage.has_value());
  EXPECT_TRUE(result->shortage->host_too_small);
  EXPECT_EQ(result->shortage->bytes_short, 30u);
  ASSERT_EQ(result->shortage->could_lend.size(), 1u);
  EXPECT_TRUE(result->shortage->could_lend[0].enough);
}

TEST(Planner, NamesWhyADeviceIsLeftOut) {
  PlanInput input;
  input.model = model(4);
  input.devices = {device("host", 1000, 1),    device("tiny", 109, 1), device("paused", 1000, 1),
                   device("late", 1000, 1),    device("new", 1000, 1), device("far", 1000, 1),
                   device("unneeded", 1000, 1)};
  input.devices[2].state = DeviceState::kPaused;
  input.devices[3].state = DeviceState::kLate;
  input.devices[4].backends[0].layer_ms.reset();
  link_all(input, 1);
  std::erase_if(input.links, [](const PlanLink& link) { return link.a == 0 && link.b == 5; });
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  using Out = std::pair<uint32_t, LeftOut>;
  EXPECT_EQ(result->left_out, (std::vector<Out>{{1, LeftOut::kTooSmall},
                                                {2, LeftOut::kPaused},
                                                {3, LeftOut::kLate},
                                                {4, LeftOut::kUnmeasured},
                                                {5, LeftOut::kUnreachable},
                                                {6, LeftOut::kUnneeded}}));
}

TEST(Planner, AnUnmeasuredPhoneCountsTwentyTimesSlower) {
  PlanInput input;
  input.model = model(4);
  input.devices = {device("host", 50 + 110 * 3, 2), device("phone", 1000, 1)};
  input.devices[1].kind = DeviceKind::kPhone;
  input.devices[1].backends[0].layer_ms.reset();
  link_all(input, 1);
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->stages.size(), 2u);
  EXPECT_EQ(result->stages[1].layers.count(), 1u);
  EXPECT_DOUBLE_EQ(result->stages[1].ms, 40);
}

TEST(Planner, WeightsHeldAlreadyDecideBetweenEquals) {
  for (const uint32_t cached : {1u, 2u}) {
    PlanInput input;
    input.model = model(6);
    input.devices = {device("host", 50 + 110 * 3, 1), device("a", 400, 1), device("b", 400, 1)};
    for (PlanDevice& one : input.devices) one.load_bytes_per_second = 100;
    input.devices[cached].cached = {{3, 6}};
    input.devices[0].cached = {{0, 3}};
    link_all(input, 1);
    const auto result = plan(input);
    ASSERT_TRUE(result.ok());
    ASSERT_EQ(result->stages.size(), 2u);
    EXPECT_EQ(result->stages[1].device, cached);
    EXPECT_EQ(result->stages[1].layers, (LayerRange{3, 6}));
    EXPECT_DOUBLE_EQ(result->load_seconds, 0);
  }
}

TEST(Planner, WithoutALinkTheHostPassesOn) {
  PlanInput input;
  input.model = model(4);
  input.devices = {device("host", 60, 1), device("a", 220, 1), device("b", 220, 1)};
  input.links = {{0, 1, 2, 1e9}, {0, 2, 4, 1e9}};
  const auto result = plan(input);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->stages.size(), 2u);
  EXPECT_NEAR(result->stages[1].hop_ms, 3, 1e-3);
  EXPECT_NEAR(result->lap_ms, 0.5 + 4 + 1 + 3 + 2, 2e-3);
}

TEST(Planner, TakesTheUsersRanges) {
  PlanInput input;
  input.model = model(8);
  input.devices = {device("host", 1000, 1), device("a", 400, 2), device("b", 400, 3)};
  link_all(input, 1);
  input.manual = {{2, {2, 4}}, {1, {4, 6}}};
  const auto result = plan(input);
  ASSERT_TRUE(result.ok()) << result.error().message;
  ASSERT_EQ(result->stages.size(), 4u);
  EXPECT_EQ(result->stages[0].device, 0u);
  EXPECT_EQ(result->stages[1].device, 2u);
  EXPECT_EQ(result->stages[3].layers, (LayerRange{6, 8}));
  EXPECT_NEAR(result->lap_ms, 0.5 + 4 + 6 + 4 + 1.5, 2e-3);
  EXPECT_EQ(result->faster_alone, std::optional<uint32_t>(0));
  input.manual = {{1, {0, 5}}};
  EXPECT_NE(plan(input).error().message.find("device a lends too little for layers 0-4"),
            std::string::npos);
  input.manual = {{1, {0, 2}}, {1, {2, 4}}};
  EXPECT_NE(plan(input).error().message.find("a is given layers twice"), std::string::npos);
  input.manual = {{1, {3, 2}}};
  EXPECT_FALSE(plan(input).ok());
  input.manual = {{1, {7, 9}}};
  EXPECT_FALSE(plan(input).ok());
}

TEST(Planner, DealsAnewOnlyForAGain) {
  PlanInput input;
  input.model = model(8);
  input.devices = {device("host", 50 + 110 * 4, 1), device("a", 500, 1), device("b", 500, 1)};
  link_all(input, 0.1);
  input.manual = {{0, {0, 4}}, {1, {4, 8}}};
  EXPECT_FALSE(*worth_redeal(input, 1.1));
  input.devices[1].backends[0].layer_ms = ms(3);
  EXPECT_TRUE(*worth_redeal(input, 1.1));
  EXPECT_FALSE(*worth_redeal(input, 3));
  input.devices[1].backends[0] = {"cpu", 200, 0, 0, ms(1)};  // it lends less than it holds
  EXPECT_TRUE(*worth_redeal(input, 1.1));
  EXPECT_FALSE(worth_redeal(input, std::nan("")).ok());
}

TEST(Planner, WhatIf) {
  PlanInput input;
  input.model = model(10);
  input.devices = {device("host", 50 + 110 * 4, 1), device("a", 110 * 4, 1),
                   device("b", 110 * 2, 1)};
  link_all(input, 1);
  EXPECT_FALSE(plan(input)->shortage);
  const auto fewer = without(input, "a");
  ASSERT_TRUE(fewer.ok());
  const auto short_of_it = plan(*fewer);
  ASSERT_TRUE(short_of_it->shortage);
  EXPECT_EQ(short_of_it->shortage->layers_held, 6u);
  const auto more = with(*fewer, 110 * 6, 0.5);
  ASSERT_TRUE(more.ok());
  EXPECT_EQ(more->devices.back().id, "new");
  const auto joined = plan(*more);
  ASSERT_FALSE(joined->shortage);
  EXPECT_EQ(joined->stages.size(), 2u);
  EXPECT_FALSE(without(input, "host").ok());
  EXPECT_FALSE(without(input, "nobody").ok());
  EXPECT_FALSE(with(input, 0, 1).ok());
  EXPECT_FALSE(with(input, 100, std::nan("")).ok());
}

TEST(Planner, RefusesNonsenseByName) {
  PlanInput good;
  good.model = model(4);
  good.devices = {device("host", 1000, 1), device("laptop", 1000, 1)};
  link_all(good, 1);
  ASSERT_TRUE(plan(good).ok());
  auto refused = [&](const std::function<void(PlanInput&)>& change) {
    PlanInput bad = good;
    change(bad);
    const auto result = plan(bad);
    return result.ok() ? std::string("accepted") : result.error().message;
  };
  const auto inf = std::numeric_limits<double>::infinity();
  for (const double value : {std::nan(""), 0.0, -1.0, inf, 1e300}) {
    const auto text =
        refused([&](PlanInput& input) { (*input.devices[1].backends[0].layer_ms)[2] = value; });
    EXPECT_NE(text.find("device laptop's backend cpu's time of a layer at width 16"),
              std::string::npos)
        << text;
    if (value == 0) continue;
    EXPECT_NE(refused([&](PlanInput& input) {
                input.links[0].rtt_ms = value;
              }).find("link between host and laptop: its round trip"),
              std::string::npos);
    EXPECT_NE(refused([&](PlanInput& input) { input.model.host_ms = value; }).find("host's own"),
              std::string::npos);
    EXPECT_NE(refused([&](PlanInput& input) {
                input.devices[1].backends[0].pass_ms = value;
              }).find("laptop"),
              std::string::npos);
  }
  EXPECT_NE(refused([&](PlanInput& input) {
              input.links[0].bytes_per_second = 0;
            }).find("its bytes/s is 0"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) {
              input.devices[1].backends[0].memory = 0;
            }).find("laptop's backend cpu lends 0 bytes"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) {
              input.devices[1].backends[0].memory = UINT64_MAX;
            }).find("laptop"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) { input.devices[1].id = "host"; })
                .find("host is there "
                      "twice"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) {
              input.model.layers[3].weight_bytes = 0;
            }).find("layer 3 has no weights"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) { input.model.layers.clear(); }).find("0 layers"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) { input.devices.clear(); }).find("0 devices"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) { input.host = 2; }).find("host is device 2"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) {
              input.links.push_back({1, 0, 1, 1e9});
            }).find("is there twice"),
            std::string::npos);
  EXPECT_NE(refused([&](PlanInput& input) {
              input.devices[1].cached = {{2, 5}};
            }).find("laptop has cached layers [2, 5)"),
            std::string::npos);
}

TEST(Planner, WidthsLieOnStraightLines) {
  const std::array<double, 4> measured{1, 2, 5, 20};
  EXPECT_DOUBLE_EQ(at_width(measured, 1), 1);
  EXPECT_DOUBLE_EQ(at_width(measured, 16), 5);
  EXPECT_DOUBLE_EQ(at_width(measured, 10), 3.5);
  EXPECT_DOUBLE_EQ(at_width(measured, 64), 20);
  EXPECT_DOUBLE_EQ(at_width(measured, 128), 40);
  EXPECT_DOUBLE_EQ(at_width({4, 3, 2, 1}, 4096), 1);
}

}  // namespace
}  // namespace tandem::ring
