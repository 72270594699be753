// Rings whose connections are encrypted: the same answers, and nobody else.
#include "wire/tls.h"

#include "ring/harness.h"
#include "ring/probe.h"

namespace tandem::toy {
namespace {

std::shared_ptr<const wire::Tls> device(uint8_t key = 7) {
  wire::RoomKey room;
  room.fill(key);
  return *wire::Tls::create(*wire::Identity::create(), room);
}

struct SecureWorkers {
  explicit SecureWorkers(size_t count, uint8_t key = 7) {
    for (size_t i = 0; i < count; ++i) {
      identities.push_back(device(key));
      ring::WorkerOptions options;
      options.load = loader();
      options.tls = identities.back();
      workers.push_back(std::move(*ring::Worker::start(std::move(options))));
    }
  }
  [[nodiscard]] std::vector<ring::RingWorker> at(
      const std::vector<ring::LayerRange>& ranges) const {
    std::vector<ring::RingWorker> result;
    for (size_t i = 0; i < ranges.size(); ++i) {
      result.push_back({workers[i]->address(), ranges[i], std::nullopt});
    }
    return result;
  }
  std::vector<std::shared_ptr<const wire::Tls>> identities;
  std::vector<std::unique_ptr<ring::Worker>> workers;
};

std::string failure(ring::RingOptions options) {
  const auto ring = ring::Ring::open(std::move(options));
  return ring.ok() ? "opened" : ring.error().message;
}

TEST(SecureRing, GivesTheSameAnswer) {
  Model model;
  const SecureWorkers workers(3);
  auto secure = options(model, workers.at({{0, 2}, {2, 4}, {4, 6}}));
  secure.tls = device();
  secure.workers[1].pin = workers.identities[1]->fingerprint();
  auto opened = open(std::move(secure));
  ASSERT_NE(opened, nullptr);
  const auto hidden = input(model, 100);
  const auto result = opened->forward(hidden, 0, 100);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, whole(model, hidden)));
  for (const auto& stage : opened->stages()) EXPECT_FALSE(stage.relayed);
  ASSERT_TRUE(opened->reset().ok());
  EXPECT_TRUE(opened->forward(input(model, 10), 0, 1).ok());
}

TEST(SecureRing, GoesThroughTheHostsOwnLayersToo) {
  Model model;
  const SecureWorkers workers(2);
  auto secure = options(model, workers.at({{1, 2}, {3, 5}}));
  secure.tls = device();
  auto opened = open(std::move(secure));
  ASSERT_NE(opened, nullptr);
  const auto hidden = input(model, 40);
  const auto result = opened->forward(hidden, 0, 40);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, whole(model, hidden)));
}

TEST(SecureRing, RefusesAnotherKeyAnotherDeviceAndNoKey) {
  Model model;
  const SecureWorkers workers(1);
  const auto at = workers.at({{0, 6}});
  auto wrong_key = options(model, at);
  wrong_key.tls = device(8);
  EXPECT_NE(failure(std::move(wrong_key)).find("room's key"), std::string::npos);

  auto wrong_pin = options(model, at);
  wrong_pin.tls = device();
  wrong_pin.workers[0].pin = wrong_pin.tls->fingerprint();
  EXPECT_NE(failure(std::move(wrong_pin)).find("another device answers"), std::string::npos);

  const std::string plain = failure(options(model, at));
  EXPECT_NE(plain.find("takes only devices that prove the room's key"), std::string::npos) << plain;

  const Workers open_workers(1);
  auto no_tls_there = options(model, open_workers.at({{0, 6}}));
  no_tls_there.tls = device();
  EXPECT_NE(failure(std::move(no_tls_there)).find("in the middle of the handshake"),
            std::string::npos);

  auto pin_without_key = options(model, open_workers.at({{0, 6}}));
  pin_without_key.workers[0].pin = workers.identities[0]->fingerprint();
  EXPECT_NE(failure(std::move(pin_without_key)).find("no room's key"), std::string::npos);
  EXPECT_EQ(workers.workers[0]->sessions(), 0u);
}

TEST(SecureRing, AWorkerThatLeavesIsNamed) {
  Model model;
  SecureWorkers workers(2);
  auto secure = options(model, workers.at({{0, 3}, {3, 6}}));
  secure.tls = device();
  auto opened = open(std::move(secure));
  ASSERT_NE(opened, nullptr);
  workers.workers[1]->stop();
  const auto result = opened->forward(input(model, 10), 0, 1);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find(workers.workers[1]->address()), std::string::npos)
      << result.error().message;
}

TEST(SecureRing, IsMeasuredLikeAnyOther) {
  Model model;
  const SecureWorkers workers(2);
  ring::ProbeOptions probe;
  probe.config_json = model.json;
  probe.config = model.config;
  probe.manifest = &model.manifest;
  probe.source = &model;
  probe.load = loader();
  probe.measure_ends = false;
  probe.workers = workers.at({{0, 3}, {3, 6}});
  probe.tls = device();
  const auto result = ring::probe_room(probe);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->links.size(), 3u);
}

}  // namespace
}  // namespace tandem::toy
