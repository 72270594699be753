// What a ring computes does not depend on how it is split.
#include <gtest/gtest.h>

#include "ring/host.h"
#include "ring/toy.h"
#include "ring/worker.h"

namespace tandem {
namespace {

using toy::Behaviour;

bool same(const model::HiddenStates& a, const model::HiddenStates& b) {
  return a.width == b.width && a.values == b.values && a.exponents == b.exponents;
}

/// What one process computes in one pass.
model::HiddenStates expected(toy::Model& model, const model::HiddenStates& input) {
  auto options = toy::options(model, {});
  options.batch = 4096;
  auto ring = ring::Ring::open(std::move(options));
  EXPECT_TRUE(ring.ok()) << ring.error().message;
  auto result = (*ring)->forward(input, 0, input.tokens());
  EXPECT_TRUE(result.ok()) << result.error().message;
  return std::move(*result);
}

struct Workers {
  explicit Workers(size_t count, std::shared_ptr<Behaviour> behaviour = std::make_shared<Behaviour>()) {
    for (size_t i = 0; i < count; ++i) workers.push_back(toy::worker(behaviour));
  }
  std::vector<ring::RingWorker> at(const std::vector<ring::LayerRange>& ranges) const {
    std::vector<ring::RingWorker> result;
    for (size_t i = 0; i < ranges.size(); ++i) {
      result.push_back({workers[i]->address(), ranges[i]});
    }
    return result;
  }
  std::vector<std::unique_ptr<ring::Worker>> workers;
};

TEST(Ring, TwoWorkersGiveWhatOneProcessGives) {
  toy::Model model;
  const auto input = toy::input(model, 100);
  const auto whole = expected(model, input);
  const Workers workers(2);
  auto ring = ring::Ring::open(toy::options(model, workers.at({{0, 3}, {3, 6}})));
  ASSERT_TRUE(ring.ok()) << ring.error().message;
  auto result = (*ring)->forward(input, 0, 100);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, whole));
}

}  // namespace
}  // namespace tandem
