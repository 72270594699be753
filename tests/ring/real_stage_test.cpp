// The ring with real models: the same bits as one process, whoever reads the weights.
#include <filesystem>

#include "ring/harness.h"
#include "weights/checkpoint.h"

namespace tandem::toy {
namespace {

struct Real {
  explicit Real(const std::string& name)
      : checkpoint(*weights::Checkpoint::open(std::string(TANDEM_SOURCE_DIR "/tests/data/oracle/") +
                                              name)),
        config(*model::parse_config(checkpoint->config_json())),
        manifest(*weights::make_manifest(*checkpoint, 1, {})) {}

  ring::RingOptions options(std::vector<ring::RingWorker> workers) {
    ring::RingOptions options;
    options.config_json = checkpoint->config_json();
    options.config = config;
    options.manifest = &manifest;
    options.source = checkpoint.get();
    options.workers = std::move(workers);
    return options;
  }
  model::HiddenStates input(uint32_t tokens) const {
    model::HiddenStates hidden;
    hidden.resize(tokens, config.hidden_size);
    for (size_t i = 0; i < hidden.values.size(); ++i) {
      hidden.values[i] =
          static_cast<uint16_t>(0x3000 + i * 7919 % 2048 + (i % 3 == 0 ? 0x8000 : 0));
    }
    return hidden;
  }

  std::unique_ptr<weights::Checkpoint> checkpoint;
  model::ModelConfig config;
  weights::Manifest manifest;
};

std::unique_ptr<ring::Worker> real_worker(const std::string& models = "") {
  ring::WorkerOptions options;
  options.models = models;
  auto worker = ring::Worker::start(options);
  EXPECT_TRUE(worker.ok()) << worker.error().message;
  return std::move(*worker);
}

class RealStage : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Oracle, RealStage, testing::Values("llama", "mistral", "qwen3", "gpt2"));

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
