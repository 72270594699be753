// What the ring's tests share: workers in this process and in others, and raw connections to them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ring/host.h"
#include "ring/local.h"
#include "ring/toy.h"
#include "ring/worker.h"
#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::toy {

inline bool same(const model::HiddenStates& a, const model::HiddenStates& b) {
  return a.width == b.width && a.values == b.values && a.exponents == b.exponents;
}

/// What one process computes of `input` in one pass.
inline model::HiddenStates whole(Model& model, const model::HiddenStates& input) {
  auto alone = options(model, {});
  alone.batch = 4096;
  auto ring = ring::Ring::open(std::move(alone));
  EXPECT_TRUE(ring.ok()) << ring.error().message;
  auto result = (*ring)->forward(input, 0, input.tokens());
  EXPECT_TRUE(result.ok()) << result.error().message;
  return std::move(*result);
}

/// Workers in this process, each with its own switches.
struct Workers {
  explicit Workers(size_t count, uint64_t memory = 0) {
    for (size_t i = 0; i < count; ++i) {
      behaviours.push_back(std::make_shared<Behaviour>());
      workers.push_back(worker(behaviours.back(), memory));
    }
  }
  [[nodiscard]] std::vector<ring::RingWorker> at(
      const std::vector<ring::LayerRange>& ranges) const {
    std::vector<ring::RingWorker> result;
    for (size_t i = 0; i < ranges.size(); ++i) {
      result.push_back({workers[i]->address(), ranges[i]});
    }
    return result;
  }
  std::vector<std::shared_ptr<Behaviour>> behaviours;
  std::vector<std::unique_ptr<ring::Worker>> workers;
};

/// Worker processes: this test program once more, running WorkerProcess.DISABLED_Serve.
inline std::unique_ptr<ring::LocalWorkers> processes(uint32_t count) {
  auto workers = ring::LocalWorkers::start(
      count, "/proc/self/exe",
      {"--gtest_filter=WorkerProcess.DISABLED_Serve", "--gtest_also_run_disabled_tests"});
  EXPECT_TRUE(workers.ok()) << workers.error().message;
  return std::move(*workers);
}

inline std::unique_ptr<ring::Ring> open(ring::RingOptions options) {
  auto ring = ring::Ring::open(std::move(options));
  EXPECT_TRUE(ring.ok()) << ring.error().message;
  return ring.ok() ? std::move(*ring) : nullptr;
}

inline std::unique_ptr<wire::Connection> raw(const std::string& address) {
  auto socket = wire::connect(*wire::parse_address(address), std::chrono::seconds(5));
  EXPECT_TRUE(socket.ok()) << socket.error().message;
  return std::make_unique<wire::Connection>(std::move(*socket));
}

inline wire::Clock::time_point soon() {
  return wire::Clock::now() + std::chrono::seconds(20);
}

/// Waits until `condition` holds, for up to 20 s.
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = soon();
  while (!condition()) {
    if (wire::Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// Says hello as a host and returns the answer's type; the message is in the connection's payload.
inline wire::Type hello(wire::Connection& connection, uint32_t protocol = wire::kProtocolVersion,
                        uint32_t contract = ring::contract_version()) {
  wire::Hello hello;
  hello.protocol = protocol;
  hello.contract = contract;
  EXPECT_TRUE(connection.send({.type = wire::Type::kHello}, hello.encode()).ok());
  const auto answer = connection.receive_until(soon(), 4096);
  EXPECT_TRUE(answer.ok()) << answer.error().message;
  return answer.ok() ? answer->type : wire::Type::kBye;
}

inline wire::Load load_request(const Model& model, uint32_t first, uint32_t last) {
  wire::Load load;
  load.manifest = model.manifest.serialize();
  load.model_hash = sha256(load.manifest);
  load.config_json = model.json;
  load.first_layer = first;
  load.last_layer = last;
  load.context = 100;
  return load;
}

}  // namespace tandem::toy
