// Measuring a room: through workers' connections, with toy stages whose cost is known.
#include "ring/probe.h"

#include <algorithm>
#include <limits>

#include "ring/harness.h"
#include "ring/meter.h"
#include "ring/pass_memory.h"
#include "ring/planner.h"

namespace tandem::toy {
namespace {

ring::ProbeOptions probe_options(Model& model, const Workers& workers) {
  ring::ProbeOptions options;
  options.config_json = model.json;
  options.config = model.config;
  options.manifest = &model.manifest;
  options.source = &model;
  options.load = loader();
  options.measure_ends = false;  // the toy has no embedding
  for (const auto& worker : workers.workers) options.workers.push_back({worker->address(), {}});
  return options;
}

TEST(Probe, MeasuresStagesAndTheWaysBetweenThem) {
  Model model;
  const Workers workers(3);
  workers.behaviours[1]->pass_us = 3000;
  const auto options = probe_options(model, workers);
  const auto probe = ring::probe_room(options);
  ASSERT_TRUE(probe.ok()) << probe.error().message;
  ASSERT_EQ(probe->devices.size(), 4u);
  EXPECT_EQ(probe->devices[0].id, "host");
  for (const auto& device : probe->devices) {
    ASSERT_EQ(device.alone.size(), ring::kProbeWidths.size()) << device.id;
    EXPECT_GE(device.layers.count(), 1u);
    for (size_t i = 0; i < device.alone.size(); ++i) {
      EXPECT_EQ(device.alone[i].width, ring::kProbeWidths[i]);
      EXPECT_GE(device.alone[i].runs, 3u);
      EXPECT_LE(device.alone[i].nanoseconds.low, device.alone[i].nanoseconds.median);
    }
  }
  EXPECT_GE(probe->devices[2].alone[0].nanoseconds.low, 3000000u);
  EXPECT_EQ(probe->devices[2].together.size(), 2u);
  EXPECT_EQ(probe->links.size(), 6u);  // all pairs
  for (const auto& link : probe->links) {
    EXPECT_GT(link.rtt_ns.low, 0u);
    EXPECT_GT(link.bytes_per_second.low, 0u);
  }
  // It leaves nothing behind that the next host would trip over.
  EXPECT_TRUE(eventually([&] { return workers.workers[0]->sessions() == 0; }));
  auto opened = open(toy::options(model, workers.at({{0, 2}, {2, 4}, {4, 6}})));
  ASSERT_NE(opened, nullptr);
  EXPECT_TRUE(opened->forward(input(model, 10), 0, 1).ok());
}

TEST(Probe, PlansAroundASlowWorker) {
  Model model;
  const Workers workers(2);
  workers.behaviours[0]->pass_us = 20000;
  auto options = probe_options(model, workers);
  options.host_memory = 0;
  const auto probe = ring::probe_room(options);
  ASSERT_TRUE(probe.ok()) << probe.error().message;
  EXPECT_TRUE(probe->devices[0].alone.empty());
  const auto plan = ring::plan(ring::plan_input(options, *probe));
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  ASSERT_EQ(plan->stages.size(), 1u);
  EXPECT_EQ(plan->stages[0].device, 2u);
}

TEST(Probe, StaysInsideTheMemoryLent) {
  Model model;
  model::StageOptions one;
  one.last_layer = 1;
  const uint64_t layer = model::stage_bytes(model.config, one);
  // Room for two layers, their states and a pass; the third worker has not even room for one.
  const uint64_t two = 2 * layer + 2 * model::state_bytes(model.config, 0, 1, 1024) + (16 << 10) +
                       ring::pass_bytes(model.config);
  Workers workers(2, two);
  workers.behaviours.push_back(std::make_shared<Behaviour>());
  workers.workers.push_back(worker(workers.behaviours.back(), layer / 2));
  const auto options = probe_options(model, workers);
  const auto probe = ring::probe_room(options);
  ASSERT_TRUE(probe.ok()) << probe.error().message;
  EXPECT_LE(probe->devices[1].layers.count(), 2u);
  EXPECT_GE(probe->devices[1].layers.count(), 1u);
  EXPECT_EQ(probe->devices[3].layers.count(), 0u);
  EXPECT_EQ(probe->devices[3].memory, layer / 2);
  EXPECT_EQ(probe->links.size(), 3u);
  const auto plan = ring::plan(ring::plan_input(options, *probe));
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  for (const auto& [device, reason] : plan->left_out) {
    EXPECT_TRUE(device != 3 || reason != ring::LeftOut::kUnneeded);
  }
}

TEST(Probe, NamesAWorkerThatBreaksOrIsNotThere) {
  Model model;
  Workers workers(2);
  auto options = probe_options(model, workers);
  workers.behaviours[1]->fail = true;
  auto probe = ring::probe_room(options);
  ASSERT_FALSE(probe.ok());
  EXPECT_NE(probe.error().message.find(workers.workers[1]->address()), std::string::npos);
  EXPECT_NE(probe.error().message.find("the toy broke"), std::string::npos);
  const std::string gone = workers.workers[1]->address();
  workers.workers[1]->stop();
  probe = ring::probe_room(options);
  ASSERT_FALSE(probe.ok());
  EXPECT_NE(probe.error().message.find(gone), std::string::npos) << probe.error().message;
  options.workers[1] = options.workers[0];
  EXPECT_NE(ring::probe_room(options).error().message.find("named twice"), std::string::npos);
}

TEST(Probe, CanBeStopped) {
  Model model;
  const Workers workers(1);
  std::atomic<bool> cancel{true};
  auto options = probe_options(model, workers);
  options.cancel = &cancel;
  const auto probe = ring::probe_room(options);
  ASSERT_FALSE(probe.ok());
  EXPECT_EQ(probe.error().kind, ErrorKind::kCancelled);
}

// What a hostile or confused host may ask of a worker.
TEST(Probe, AWorkerRefusesMeasurementsOutOfOrder) {
  Model model;
  const Workers workers(1);
  auto asks = [&](bool load, const wire::Measure& measure, bool activate = false) {
    auto connection = raw(workers.workers[0]->address());
    EXPECT_EQ(hello(*connection), wire::Type::kWelcome);
    auto answer = [&] {
      for (;;) {
        const auto header = connection->receive_until(soon(), 4096);
        if (!header.ok()) return "error: " + header.error().message;
        if (header->type == wire::Type::kProgress) continue;
        if (header->type == wire::Type::kNeedTensor) {
          const auto data = model.read(*wire::decode_tensor_name(connection->payload()));
          EXPECT_TRUE(connection->send({.type = wire::Type::kTensorChunk}, data->bytes).ok());
          continue;
        }
        if (header->type != wire::Type::kRefusal) return std::string(wire::name(header->type));
        return wire::Refusal::decode(connection->payload())->reason;
      }
    };
    if (load) {
      EXPECT_TRUE(
          connection->send({.type = wire::Type::kLoad}, load_request(model, 0, 2).encode()).ok());
      EXPECT_EQ(answer(), "ready");
    }
    if (activate) {
      EXPECT_TRUE(
          connection->send({.type = wire::Type::kActivate}, wire::Activate{}.encode()).ok());
      EXPECT_EQ(answer(), "activated");
    }
    EXPECT_TRUE(connection->send({.type = wire::Type::kMeasure}, measure.encode()).ok());
    return answer();
  };
  wire::Measure measure;
  measure.budget_ms = 50;
  measure.widths = {1, 4};
  EXPECT_EQ(asks(true, measure), "measured");
  EXPECT_NE(asks(false, measure).find("before a stage is loaded"), std::string::npos);
  EXPECT_NE(asks(true, measure, true).find("after activate"), std::string::npos);
  measure.widths = {64};
  EXPECT_NE(asks(true, measure).find("in a context of 100"), std::string::npos);
  measure.widths = {1};
  measure.position = std::numeric_limits<uint32_t>::max();
  EXPECT_NE(asks(true, measure).find("in a context of 100"), std::string::npos);
  measure.widths = {0};
  EXPECT_NE(asks(true, measure).find("malformed"), std::string::npos);
}

TEST(Probe, EchoesOnlyToWhoKnowsTheKey) {
  Model model;
  const Workers workers(1);
  auto stranger = raw(workers.workers[0]->address());
  wire::Hello said;
  said.contract = ring::contract_version();
  said.role = wire::Role::kEcho;
  ASSERT_TRUE(stranger->send({.type = wire::Type::kHello}, said.encode()).ok());
  const auto answer = stranger->receive_until(soon(), 4096);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->type, wire::Type::kRefusal);
}

}  // namespace
}  // namespace tandem::toy
