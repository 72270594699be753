// The ring with real models: the same bits as one process, whoever reads the weights.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ring/harness.h"
#include "ring/stored_model.h"

namespace tandem::toy {
namespace {

struct Real : StoredModel {
  explicit Real(const std::string& name)
      : StoredModel(std::filesystem::path(TANDEM_SOURCE_DIR "/tests/data/oracle") / name) {}

  model::HiddenStates input(uint32_t tokens) const {
    model::HiddenStates hidden;
    hidden.resize(tokens, config.hidden_size);
    for (size_t i = 0; i < hidden.values.size(); ++i) {
      hidden.values[i] =
          static_cast<uint16_t>(0x3000 + i * 7919 % 2048 + (i % 3 == 0 ? 0x8000 : 0));
    }
    return hidden;
  }
};

std::unique_ptr<ring::Worker> real_worker(const std::string& models = "") {
  ring::WorkerOptions options;
  options.models = models;
  auto worker = ring::Worker::start(options);
  EXPECT_TRUE(worker.ok()) << worker.error().message;
  return std::move(*worker);
}

class RealStage : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Oracle, RealStage,
                         testing::Values("llama", "mistral", "qwen3", "gpt2", "qwen3_5"));

TEST_P(RealStage, SplitAnywhereGivesTheSameBits) {
  Real real(GetParam());
  const auto given = real.input(40);
  auto alone = open(real.options({}));
  ASSERT_NE(alone, nullptr);
  const auto expected = alone->forward(given, 0, 40);
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  const auto one = real_worker();
  const auto two = real_worker();
  const uint32_t layers = real.config.layers;
  for (uint32_t cut = 1; cut < layers; ++cut) {
    auto settings = real.options({{one->address(), {0, cut}}, {two->address(), {cut, layers}}});
    settings.batch = 7;
    auto opened = open(std::move(settings));
    ASSERT_NE(opened, nullptr);
    for (int turn = 0; turn < 2; ++turn) {
      const auto result = opened->forward(given, 0, 40);
      ASSERT_TRUE(result.ok()) << result.error().message;
      EXPECT_TRUE(same(*result, *expected));
      ASSERT_TRUE(opened->reset().ok());
    }
  }
}

// A window of 16 positions, far past what it keeps: the ring goes back where stages can, and begins
// anew where they can't.
TEST(RealStage, WindowsAreGoneBackToOrBegunAnew) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("tandem-windows-" + std::to_string(getpid()));
  fs::copy(TANDEM_SOURCE_DIR "/tests/data/oracle/mistral", folder, fs::copy_options::recursive);
  std::string config;
  std::getline(std::ifstream(folder / "config.json"), config, '\0');
  const std::string context = "\"max_position_embeddings\": 512";
  ASSERT_NE(config.find(context), std::string::npos);
  config.replace(config.find(context), context.size(), "\"max_position_embeddings\": 4096");
  std::ofstream(folder / "config.json") << config;
  Real real(folder);
  const auto one = real_worker();
  const auto two = real_worker();
  constexpr uint32_t kLength = 3000;
  const auto given = real.input(kLength);
  const auto rows = [](const model::HiddenStates& all, uint32_t first) {
    model::HiddenStates part;
    part.resize(all.tokens() - first, all.width);
    std::copy(all.values.begin() + size_t{first} * all.width, all.values.end(),
              part.values.begin());
    std::copy(all.exponents.begin() + first, all.exponents.end(), part.exponents.begin());
    return part;
  };
  const auto options = [&](std::vector<ring::RingWorker> workers) {
    ring::RingOptions result = real.options(std::move(workers));
    result.context = 4096;
    return result;
  };
  auto alone = open(options({}));
  ASSERT_NE(alone, nullptr);
  const auto expected = alone->forward(given, 0, kLength);
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  auto opened = open(options({{one->address(), {0, 1}}, {two->address(), {2, 3}}}));
  ASSERT_NE(opened, nullptr);
  for (const uint32_t length : {0U, 2500U, 2000U, 1000U}) {
    const auto reached = opened->go_back(length);
    ASSERT_TRUE(reached.ok()) << reached.error().message;
    EXPECT_EQ(*reached, length == 1000 ? 0 : length);
    const auto result = opened->forward(rows(given, *reached), *reached, kLength - *reached);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(same(*result, rows(*expected, *reached))) << length;
  }
  // Refused without harm.
  EXPECT_FALSE(opened->rollback(1000).ok());
  const auto more = opened->forward(rows(given, kLength - 5), kLength, 5);
  EXPECT_TRUE(more.ok());
  fs::remove_all(folder);
}

// A hybrid over the host and two workers, each of which has recurrent layers.
struct Hybrid {
  Hybrid() : real("qwen3_5"), one(real_worker()), two(real_worker()) {
    alone = open(real.options({}));
    auto settings = real.options({{one->address(), {1, 2}}, {two->address(), {2, 4}}});
    settings.batch = 8;
    ring = open(std::move(settings));
  }
  /// What `tokens` tokens from the start of `given` come to, run in one process.
  model::HiddenStates expected(const model::HiddenStates& given, uint32_t tokens) {
    EXPECT_TRUE(alone->reset().ok());
    auto result = alone->forward(rows(given, 0, tokens), 0, 1);
    EXPECT_TRUE(result.ok()) << result.error().message;
    return *result;
  }
  /// Runs rows [ring's length, end), and expects the last one's result.
  void go_on(const model::HiddenStates& given, uint32_t end) {
    const uint32_t length = ring->length();
    auto result = ring->forward(rows(given, length, end - length), length, 1);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(same(*result, expected(given, end))) << length << " to " << end;
  }

  Real real;
  std::unique_ptr<ring::Worker> one, two;
  std::unique_ptr<ring::Ring> alone, ring;
};

TEST(HybridRing, RollsBackWithinTheLastFrame) {
  Hybrid hybrid;
  ASSERT_NE(hybrid.ring, nullptr);
  const auto given = hybrid.real.input(64);
  hybrid.go_on(given, 40);  // five frames of 8
  EXPECT_FALSE(hybrid.ring->rollback(31).ok());
  ASSERT_TRUE(hybrid.ring->rollback(37).ok());
  ASSERT_TRUE(hybrid.ring->rollback(33).ok());
  hybrid.go_on(given, 35);
  hybrid.go_on(given, 36);
  ASSERT_TRUE(hybrid.ring->rollback(35).ok());
  EXPECT_FALSE(hybrid.ring->rollback(34).ok());
  hybrid.go_on(given, 50);
  ASSERT_TRUE(hybrid.ring->rollback(0).ok());
  hybrid.go_on(given, 9);
}

TEST(HybridRing, ComesBackToCheckpointsOfAllStages) {
  Hybrid hybrid;
  ASSERT_NE(hybrid.ring, nullptr);
  const auto given = hybrid.real.input(64);
  hybrid.go_on(given, 20);
  ASSERT_TRUE(hybrid.ring->save(1).ok());
  hybrid.go_on(given, 41);
  ASSERT_TRUE(hybrid.ring->save(2).ok());
  hybrid.go_on(given, 60);
  ASSERT_TRUE(hybrid.ring->restore(2).ok());
  EXPECT_EQ(hybrid.ring->length(), 41u);
  hybrid.go_on(given, 42);
  ASSERT_TRUE(hybrid.ring->restore(1).ok());
  EXPECT_FALSE(hybrid.ring->restore(2).ok()) << "it lies in what was rolled back";
  hybrid.go_on(given, 50);
  ASSERT_TRUE(hybrid.ring->drop(1).ok());
  EXPECT_FALSE(hybrid.ring->restore(1).ok());
}

TEST(HybridRing, GoesBackNoFurtherThanItMust) {
  Hybrid hybrid;
  ASSERT_NE(hybrid.ring, nullptr);
  const auto given = hybrid.real.input(64);
  hybrid.go_on(given, 20);
  ASSERT_TRUE(hybrid.ring->keep().ok());  // leads to 14 to 20: three frames of 7, 7, 6
  hybrid.go_on(given, 41);
  ASSERT_TRUE(hybrid.ring->keep().ok());
  hybrid.go_on(given, 60);
  EXPECT_EQ(*hybrid.ring->go_back(60), 60u);
  EXPECT_EQ(*hybrid.ring->go_back(58), 58u) << "the last frame leads there";
  hybrid.go_on(given, 59);
  EXPECT_EQ(*hybrid.ring->go_back(50), 41u);
  hybrid.go_on(given, 45);
  EXPECT_EQ(*hybrid.ring->go_back(16), 16u) << "the first checkpoint's frame leads there";
  hybrid.go_on(given, 30);
  EXPECT_EQ(*hybrid.ring->go_back(13), 0u);
  hybrid.go_on(given, 33);
}

TEST(HybridRing, KeepsTheCheckpointsThatAreMissedMost) {
  Hybrid hybrid;
  ASSERT_NE(hybrid.ring, nullptr);
  const auto given = hybrid.real.input(64);
  const uint32_t limit = model::checkpoint_limit(hybrid.real.config);
  ASSERT_LT(limit, 20u);
  for (uint32_t end = 3; end <= 60; end += 3) {
    hybrid.go_on(given, end);
    ASSERT_TRUE(hybrid.ring->keep().ok());
    ASSERT_TRUE(hybrid.ring->keep().ok()) << "again";
  }
  // Whatever is asked for, some checkpoint lies near before it.
  for (const uint32_t wanted : {59u, 50u, 33u, 17u}) {
    const auto reached = hybrid.ring->go_back(wanted);
    ASSERT_TRUE(reached.ok()) << reached.error().message;
    EXPECT_LE(*reached, wanted);
    EXPECT_GE(*reached + 20, wanted);
    if (*reached < 60) hybrid.go_on(given, *reached + 1);
  }
}

TEST(RealWorker, FindsTheModelUnderItsFolderByContent) {
  Real real("llama");
  const auto held = real_worker(TANDEM_SOURCE_DIR "/tests/data/oracle");
  auto opened = open(real.options({{held->address(), {0, real.config.layers}}}));
  ASSERT_NE(opened, nullptr);
  EXPECT_EQ(opened->stages()[0].load_bytes, 0u);
  EXPECT_TRUE(opened->forward(real.input(5), 0, 1).ok());
}

TEST(RealWorker, FetchesWhatItsFolderDoesNotHave) {
  Real real("llama");
  const auto held = real_worker(TANDEM_SOURCE_DIR "/tests/data/oracle/gpt2");
  auto opened = open(real.options({{held->address(), {0, real.config.layers}}}));
  ASSERT_NE(opened, nullptr);
  EXPECT_GT(opened->stages()[0].load_bytes, 0u);
}

}  // namespace
}  // namespace tandem::toy
