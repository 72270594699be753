// The planner's rules one by one, and the cases that broke other planners.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "ring/planner_costs.h"
#include "ring/planner_search.h"
#include "ring/planner_support.h"

namespace tandem::ring {
namespace {

using namespace planner_test;
constexpr double kNever = std::numeric_limits<double>::infinity();

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
