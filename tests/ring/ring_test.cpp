// What a ring computes does not depend on how it is split, batched or asked.
#include <atomic>

#include "ring/harness.h"

namespace tandem::toy {
namespace {

using ring::LayerRange;

TEST(Ring, OneToFiveWorkersGiveTheSameAtEveryBoundary) {
  Model model;
  const auto given = input(model, 70);
  const auto expected = whole(model, given);
  const Workers workers(5);
  // All ways to cut six layers into one to five runs.
  for (uint32_t cuts = 0; cuts < 32; ++cuts) {
    std::vector<LayerRange> ranges{{0, 1}};
    for (uint32_t layer = 1; layer < 6; ++layer) {
      if ((cuts >> (layer - 1) & 1) != 0) {
        ranges.push_back({layer, layer + 1});
      } else {
        ranges.back().last = layer + 1;
      }
    }
    if (ranges.size() > 5) continue;
    auto opened = open(options(model, workers.at(ranges)));
    ASSERT_NE(opened, nullptr);
    const auto result = opened->forward(given, 0, 70);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(same(*result, expected)) << cuts;
  }
}

TEST(Ring, TheHostsLayersMayLieAnywhere) {
  Model model;
  const auto given = input(model, 70);
  const auto expected = whole(model, given);
  const Workers workers(2);
  const std::vector<std::vector<LayerRange>> splits = {
      {{1, 3}, {3, 6}}, {{0, 2}, {2, 4}}, {{0, 2}, {4, 6}}, {{1, 2}, {4, 5}}, {{2, 3}}, {{5, 6}}};
  for (const auto& ranges : splits) {
    auto opened = open(options(model, workers.at(ranges)));
    ASSERT_NE(opened, nullptr);
    const auto result = opened->forward(given, 0, 70);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(same(*result, expected));
    uint32_t layer = 0;
    for (const auto& stage : opened->stages()) {
      EXPECT_EQ(stage.layers.first, layer);
      layer = stage.layers.last;
      EXPECT_GT(stage.weight_bytes, 0u);
    }
    EXPECT_EQ(layer, 6u);
  }
}

TEST(Ring, BatchesAndFramesInFlightDontChangeTheAnswer) {
  Model model;
  const auto given = input(model, 50);
  const auto expected = whole(model, given);
  const Workers workers(3);
  for (const uint32_t batch : {1u, 2u, 5u, 16u, 48u, 4096u}) {
    for (const uint32_t in_flight : {1u, 2u, 6u, 256u}) {
      auto settings = options(model, workers.at({{0, 2}, {2, 3}, {4, 6}}));
      settings.batch = batch;
      settings.in_flight = in_flight;
      auto opened = open(std::move(settings));
      const auto result = opened->forward(given, 0, 50);
      ASSERT_TRUE(result.ok()) << result.error().message;
      EXPECT_TRUE(same(*result, expected)) << batch << " " << in_flight;
    }
  }
}

TEST(Ring, GivesTheWantedRowsOnly) {
  Model model;
  const auto given = input(model, 50);
  const auto expected = whole(model, given);
  const Workers workers(2);
  for (const auto& ranges : {std::vector<LayerRange>{{0, 3}, {3, 6}}, {{0, 3}, {3, 5}}}) {
    auto opened = open(options(model, workers.at(ranges)));
    for (const uint32_t want : {0u, 1u, 18u, 19u, 32u, 49u, 50u}) {
      ASSERT_TRUE(opened->reset().ok());
      const auto result = opened->forward(given, 0, want);
      ASSERT_TRUE(result.ok()) << result.error().message;
      EXPECT_TRUE(same(*result, rows(expected, 50 - want, want))) << want;
    }
  }
}

TEST(Ring, RowsThatNobodyNeedsDontTravel) {
  Model model;
  const Workers workers(1);
  auto settings = options(model, workers.at({{0, 6}}));
  settings.batch = 32;
  auto opened = open(std::move(settings));
  const auto before = opened->stages()[0].bytes_sent;
  ASSERT_TRUE(opened->forward(input(model, 320), 0, 1).ok());
  // Ten frames, of which the last has one row.
  EXPECT_EQ(opened->stages()[0].bytes_sent - before, 10 * 48 + 64 * 2 + 2);
}

TEST(Ring, ContinuesWhereItIs) {
  Model model;
  const auto given = input(model, 60);
  const auto expected = whole(model, given);
  const Workers workers(2);
  auto opened = open(options(model, workers.at({{1, 3}, {3, 5}})));
  uint32_t at = 0;
  for (const uint32_t tokens : {40u, 1u, 1u, 7u, 11u}) {
    const auto result = opened->forward(rows(given, at, tokens), at, tokens);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(same(*result, rows(expected, at, tokens)));
    at += tokens;
    EXPECT_EQ(opened->length(), at);
  }
}

TEST(Ring, RollsBackAndResets) {
  Model model;
  const auto given = input(model, 60);
  const auto expected = whole(model, given);
  const Workers workers(2);
  auto opened = open(options(model, workers.at({{0, 2}, {3, 6}})));
  ASSERT_TRUE(opened->forward(rows(given, 0, 40), 0, 0).ok());
  ASSERT_TRUE(opened->forward(input(model, 9, 99), 40, 0).ok());
  ASSERT_TRUE(opened->rollback(45).ok());
  ASSERT_TRUE(opened->rollback(40).ok());
  auto result = opened->forward(rows(given, 40, 20), 40, 20);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, rows(expected, 40, 20)));
  ASSERT_TRUE(opened->rollback(3).ok());
  ASSERT_TRUE(opened->reset().ok());
  result = opened->forward(given, 0, 60);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, expected));
}

TEST(Ring, KeepsCheckpoints) {
  Model model;
  const auto given = input(model, 60);
  const auto expected = whole(model, given);
  const Workers workers(2);
  auto opened = open(options(model, workers.at({{0, 2}, {2, 5}})));
  ASSERT_TRUE(opened->forward(rows(given, 0, 30), 0, 0).ok());
  ASSERT_TRUE(opened->save(7).ok());
  ASSERT_TRUE(opened->forward(input(model, 20, 99), 30, 0).ok());
  ASSERT_TRUE(opened->save(8).ok());
  ASSERT_TRUE(opened->restore(7).ok());
  EXPECT_EQ(opened->length(), 30u);
  EXPECT_FALSE(opened->restore(8).ok()) << "it lies in what was rolled back";
  const auto result = opened->forward(rows(given, 30, 30), 30, 30);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, rows(expected, 30, 30)));
  ASSERT_TRUE(opened->drop(7).ok());
  EXPECT_FALSE(opened->restore(7).ok());
  EXPECT_TRUE(opened->rollback(10).ok()) << "a missing checkpoint breaks nothing";
}

TEST(Ring, RefusesWhatCantBeWithoutBreaking) {
  Model model(6, 64, 100);
  const Workers workers(1);
  auto opened = open(options(model, workers.at({{0, 6}})));
  ASSERT_TRUE(opened->forward(input(model, 10), 0, 1).ok());
  EXPECT_NE(opened->forward(input(model, 1), 5, 1).error().message.find("the ring holds 10"),
            std::string::npos);
  EXPECT_NE(opened->forward(input(model, 91), 10, 1).error().message.find("context of 100"),
            std::string::npos);
  EXPECT_FALSE(opened->forward(input(model, 2), 10, 3).ok());
  EXPECT_FALSE(opened->rollback(11).ok());
  Model wider(6, 128);
  EXPECT_FALSE(opened->forward(input(wider, 1), 10, 1).ok());
  EXPECT_TRUE(opened->forward(input(model, 90), 10, 1).ok());
}

TEST(Ring, CancelledItIsAsBefore) {
  Model model;
  const auto given = input(model, 400);
  const auto expected = whole(model, given);
  const Workers workers(2);
  std::atomic<bool> cancel{false};
  auto settings = options(model, workers.at({{0, 2}, {3, 6}}));
  settings.cancel = &cancel;
  settings.batch = 4;
  auto opened = open(std::move(settings));
  ASSERT_TRUE(opened->forward(rows(given, 0, 10), 0, 0).ok());
  for (const auto& behaviour : workers.behaviours) behaviour->pass_us = 5000;
  for (int i = 0; i < 3; ++i) {
    cancel = false;
    std::thread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
      cancel = true;
    });
    const auto result = opened->forward(rows(given, 10, 390), 10, 1);
    canceller.join();
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().kind, ErrorKind::kCancelled);
    EXPECT_EQ(opened->length(), 10u);
  }
  cancel = false;
  for (const auto& behaviour : workers.behaviours) behaviour->pass_us = 0;
  // Frames of the three aborted laps are still under way now.
  const auto result = opened->forward(rows(given, 10, 390), 10, 390);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, rows(expected, 10, 390)));
}

TEST(Ring, TwoHostsShareWorkersAndTheirStages) {
  Model model;
  const auto given = input(model, 200);
  const auto expected = whole(model, given);
  const Workers workers(2);
  auto run = [&] {
    for (int i = 0; i < 5; ++i) {
      auto opened = open(options(model, workers.at({{0, 3}, {3, 6}})));
      if (opened == nullptr) return;
      const auto result = opened->forward(given, 0, 200);
      EXPECT_TRUE(result.ok() && same(*result, expected));
    }
  };
  std::thread other(run);
  run();
  other.join();
  EXPECT_EQ(workers.workers[0]->stages(), 1u);
  EXPECT_EQ(workers.behaviours[0]->loads, workers.behaviours[1]->loads);
  EXPECT_EQ(workers.behaviours[0]->loads, model::layer_tensors(model.config, 0, 3).size());
}

TEST(Ring, GoesThroughTheHostWhereWorkersCantReachEachOther) {
  Model model;
  const auto given = input(model, 100);
  const auto expected = whole(model, given);
  const Workers workers(2);
  // The host reaches the second worker by a name that the first worker's dial does not get through:
  // a forwarder that takes only connections that the host makes, by refusing links in from workers.
  auto listener = wire::Listener::open({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  std::atomic<bool> stop{false};
  std::atomic<int> links{0};
  std::thread forwarder([&] {
    std::vector<std::thread> pumps;
    while (!stop) {
      if (!wire::wait_for(listener->fd(), false,
                          wire::Clock::now() + std::chrono::milliseconds(50)))
        continue;
      auto accepted = listener->accept();
      if (!accepted.ok() || !accepted->has_value()) continue;
      auto client = std::make_shared<wire::Connection>(std::move(**accepted));
      const auto first = client->receive_until(soon(), 4096);
      if (!first.ok()) continue;
      const auto said = wire::Hello::decode(client->payload());
      // The first link in is the other worker's, the second the host's.
      if (said.ok() && said->role == wire::Role::kLinkIn && links++ == 0) continue;
      std::shared_ptr<wire::Connection> server = raw(workers.workers[1]->address());
      EXPECT_TRUE(server->send({.type = wire::Type::kHello}, client->payload()).ok());
      auto pump = [&stop](const std::shared_ptr<wire::Connection>& from,
                          const std::shared_ptr<wire::Connection>& to) {
        while (!stop) {
          if (!wire::wait_for(from->fd(), false,
                              wire::Clock::now() + std::chrono::milliseconds(50))) {
            continue;
          }
          const auto header = from->receive_until(soon(), 64u << 20);
          if (!header.ok()) break;
          if (!to->send_until(soon(), *header, from->payload()).ok()) break;
        }
        to->shutdown();
      };
      pumps.emplace_back(pump, client, server);
      pumps.emplace_back(pump, server, client);
    }
    for (auto& pump : pumps) pump.join();
  });
  {
    auto settings = options(model, workers.at({{0, 3}, {3, 6}}));
    settings.workers[1].address = listener->address().text();
    auto opened = open(std::move(settings));
    if (opened != nullptr) {
      const auto result = opened->forward(given, 0, 100);
      EXPECT_TRUE(result.ok()) << result.error().message;
      if (result.ok()) {
        EXPECT_TRUE(same(*result, expected));
      }
      EXPECT_TRUE(opened->stages()[0].relayed);
    }
  }
  stop = true;
  forwarder.join();
}

TEST(Ring, ReportsWhatItsStagesDid) {
  Model model;
  const Workers workers(2);
  for (const auto& behaviour : workers.behaviours) behaviour->pass_us = 2000;
  auto opened = open(options(model, workers.at({{0, 2}, {3, 6}})));
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(opened->forward(input(model, 1), i, 1).ok());
  const auto stages = opened->stages();
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[1].peer, "host");
  EXPECT_EQ(stages[0].peer, workers.workers[0]->address());
  EXPECT_GE(stages[0].ms_per_pass, 2.0);
  EXPECT_GT(stages[0].hop_ms, 0.0);
  EXPECT_GT(stages[0].bytes_received, 5u * 64 * 2);
  EXPECT_GT(stages[2].load_bytes, 0u);
}

TEST(Ring, WithoutWorkersThereAreNoSockets) {
  Model model;
  auto alone = options(model, {});
  alone.manifest = nullptr;
  auto opened = open(std::move(alone));
  ASSERT_TRUE(opened->forward(input(model, 100), 0, 1).ok());
  EXPECT_EQ(opened->stages().size(), 1u);
}

}  // namespace
}  // namespace tandem::toy
