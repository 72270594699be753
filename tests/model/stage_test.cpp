// Stages: the same bits however a model is cut, threaded, rolled back; and what a stage refuses.
#include "model/stage.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "model/state_stretch.h"
#include "model/support.h"

namespace tandem::model {
namespace {

constexpr std::array kModels = {"llama",     "mistral", "qwen2",  "qwen3",   "gpt2",
                                "gemma3",    "phi3",    "olmo2",  "smollm3", "granite",
                                "qwen3_moe", "mixtral", "gpt_oss"};

class Split : public testing::TestWithParam<const char*> {};

TEST_P(Split, EveryCutThreadCountAndWeightFormatGivesTheSameBits) {
  Files files = open(GetParam());
  const std::vector<uint32_t> tokens = test_tokens(files.config, 40);
  for (const WeightBits bits : {WeightBits::k8, WeightBits::k4}) {
    StageOptions options;
    options.weights = bits;
    const std::vector<float> whole = run_cut(files, options, {0, files.config.layers}, tokens);
    for (uint32_t cut = 0; cut <= files.config.layers; ++cut) {
      EXPECT_EQ(run_cut(files, options, {0, cut, files.config.layers}, tokens), whole)
          << "cut at " << cut;
    }
    for (const uint32_t threads : {2U, 4U, 7U}) {
      options.threads = threads;
      EXPECT_EQ(run_cut(files, options, {0, 1, 2, 3, files.config.layers}, tokens), whole)
          << threads << " threads";
    }
  }
}

TEST_P(Split, ARolledBackCacheGoesOnAsIfNothingHadBeen) {
  Files files = open(GetParam());
  const std::vector<uint32_t> tokens = test_tokens(files.config, 40);
  Loaded model = load(files, StageOptions{});
  auto fresh = model.stage->new_sequence();
  const std::vector<float> wanted = model.last_logits(*fresh, tokens);
  for (const uint32_t kept : {0U, 1U, 15U, 16U, 17U, 39U}) {
    auto sequence = model.stage->new_sequence();
    std::vector<uint32_t> other(tokens.begin(), tokens.begin() + kept);
    const auto strange = test_tokens(files.config, 60);
    other.insert(other.end(), strange.rbegin(), strange.rbegin() + 20);
    (void)model.last_logits(*sequence, other);
    ASSERT_TRUE(sequence->rollback(kept).ok());
    EXPECT_EQ(model.last_logits(*sequence, std::span(tokens).subspan(kept)), wanted)
        << "kept " << kept;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Split, testing::ValuesIn(kModels),
                         [](const auto& family) { return std::string(family.param); });

TEST(Stage, SaysHowManyBytesItHoldsBeforeItIsLoaded) {
  for (const char* name : kModels) {
    Files files = open(name);
    for (const WeightBits bits : {WeightBits::k8, WeightBits::k4}) {
      StageOptions options;
      options.weights = bits;
      options.first_layer = 1;
      options.last_layer = 3;
      auto stage = Stage::load(files.config, options, *files.checkpoint, {});
      ASSERT_TRUE(stage.ok());
      EXPECT_EQ((*stage)->bytes(), stage_bytes(files.config, options)) << name;
      auto ends = Ends::load(files.config, options, *files.checkpoint, {});
      ASSERT_TRUE(ends.ok());
      EXPECT_EQ((*ends)->bytes(), ends_bytes(files.config, bits)) << name;
      auto sequence = (*stage)->new_sequence();
      HiddenStates hidden = *(*ends)->embed(test_tokens(files.config, 20), 0);
      ASSERT_TRUE((*stage)->run(*sequence, 0, hidden).ok());
      EXPECT_EQ(sequence->bytes(), 256 * kv_bytes_per_position(files.config, 1, 3)) << name;
    }
  }
}

TEST(Stage, NamesEveryTensorThatItReads) {
  for (const char* name : kModels) {
    Files files = open(name);
    std::vector<weights::TensorInfo> wanted = layer_tensors(files.config, 0, files.config.layers);
    const auto ends = ends_tensors(files.config);
    wanted.insert(wanted.end(), ends.begin(), ends.end());
    EXPECT_EQ(wanted.size(), files.checkpoint->tensors().size()) << name;
    for (const weights::TensorInfo& tensor : wanted) {
      const weights::TensorInfo* found = files.checkpoint->find(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
    }
  }
}

TEST(Stage, RefusesWhatDoesNotFit) {
  Files files = open("llama");
  Loaded model = load(files, StageOptions{});
  auto sequence = model.stage->new_sequence();
  HiddenStates hidden = *model.ends->embed(test_tokens(files.config, 4), 0);

  HiddenStates gap = hidden;
  EXPECT_NE(model.stage->run(*sequence, 3, gap).error().message.find("position 3"),
            std::string::npos);
  HiddenStates narrow = hidden;
  narrow.width = 63;
  EXPECT_FALSE(model.stage->run(*sequence, 0, narrow).ok());
  HiddenStates infinite = hidden;
  infinite.values[5] = 0x7c00;
  EXPECT_FALSE(model.stage->run(*sequence, 0, infinite).ok());
  HiddenStates far = hidden;
  far.exponents[0] = 500;
  EXPECT_FALSE(model.stage->run(*sequence, 0, far).ok());
  EXPECT_EQ(sequence->length(), 0U);
  EXPECT_FALSE(sequence->rollback(1).ok());

  Loaded other = load(files, StageOptions{});
  auto foreign = other.stage->new_sequence();
  EXPECT_FALSE(model.stage->run(*foreign, 0, hidden).ok());

  const uint32_t unknown[] = {files.config.vocab};
  EXPECT_NE(model.ends->embed(unknown, 0).error().message.find("outside the vocabulary"),
            std::string::npos);
  EXPECT_NE(model.ends->embed(test_tokens(files.config, 4), files.config.context - 3)
                .error()
                .message.find("past the model's context"),
            std::string::npos);

  StageOptions beyond;
  beyond.last_layer = files.config.layers + 1;
  EXPECT_FALSE(Stage::load(files.config, beyond, *files.checkpoint, {}).ok());
}

// A source whose tensors can be changed before the stage sees them.
class Changed final : public weights::TensorSource {
 public:
  explicit Changed(weights::TensorSource& source) : source_(source) {}
  std::string target;
  std::function<void(weights::TensorData&, std::vector<std::byte>&)> change;
  bool missing = false;

  [[nodiscard]] const weights::TensorInfo* find(std::string_view tensor) const override {
    return source_.find(tensor);
  }
  [[nodiscard]] Result<weights::TensorData> read(std::string_view tensor) override {
    if (tensor == target && missing) {
      return Error{ErrorKind::kNotFound, "no tensor " + std::string(tensor)};
    }
    auto data = source_.read(tensor);
    if (!data.ok() || tensor != target) return data;
    auto bytes = std::make_shared<std::vector<std::byte>>(data->bytes.begin(), data->bytes.end());
    change(*data, *bytes);
    data->bytes = *bytes;
    data->owner = bytes;
    return data;
  }

 private:
  weights::TensorSource& source_;
};

TEST(Stage, NamesTheTensorThatCantBeLoaded) {
  Files files = open("llama");
  StageOptions options;
  options.last_layer = 4;
  Changed source(*files.checkpoint);
  const auto error = [&] {
    auto stage = Stage::load(files.config, options, source, {});
    return stage.ok() ? std::string("loaded") : stage.error().message;
  };
  source.target = "model.layers.2.mlp.up_proj.weight";
  source.change = [](weights::TensorData&, std::vector<std::byte>& bytes) {
    bytes[101] = std::byte{0x7f};
    bytes[100] = std::byte{0xc0};
  };
  EXPECT_NE(error().find(source.target), std::string::npos) << error();
  source.change = [](weights::TensorData& data, std::vector<std::byte>&) {
    std::swap(data.info.shape[0], data.info.shape[1]);
  };
  EXPECT_NE(error().find(source.target), std::string::npos) << error();
  source.missing = true;
  EXPECT_NE(error().find(source.target), std::string::npos) << error();
  source.missing = false;
  source.target = "model.layers.1.input_layernorm.weight";
  source.change = [](weights::TensorData& data, std::vector<std::byte>& bytes) {
    bytes.resize(bytes.size() / 2);
    data.info.shape[0] /= 2;
  };
  EXPECT_NE(error().find(source.target), std::string::npos) << error();
}

TEST(Stage, StopsLoadingWhenAskedTo) {
  Files files = open("llama");
  StageOptions options;
  options.last_layer = 4;
  int calls = 0;
  auto stage = Stage::load(files.config, options, *files.checkpoint,
                           [&](uint64_t, uint64_t) { return ++calls < 5; });
  ASSERT_FALSE(stage.ok());
  EXPECT_EQ(stage.error().kind, ErrorKind::kCancelled);
  EXPECT_EQ(calls, 5);
}

TEST(Stage, ReportsProgressUpToTheTotal) {
  Files files = open("gpt2");
  StageOptions options;
  options.last_layer = 4;
  uint64_t last = 0;
  uint64_t all = 0;
  auto stage =
      Stage::load(files.config, options, *files.checkpoint, [&](uint64_t done, uint64_t total) {
        EXPECT_GT(done, last);
        last = done;
        all = total;
        return true;
      });
  ASSERT_TRUE(stage.ok());
  EXPECT_EQ(last, all);
}

// Three and five threads can't share two kv heads: they share positions.
TEST(Stage, ThreadsThatShareThePositionsOfAKvHeadGiveTheSameBits) {
  Files files = open("qwen3");
  files.config.context = 2048;
  const std::vector<uint32_t> tokens = test_tokens(files.config, 1503);
  std::vector<float> wanted;
  for (const uint32_t threads : {1U, 3U, 5U}) {
    Loaded model = load(files, with(threads, Isa::kBest));
    auto sequence = model.stage->new_sequence();
    std::vector<float> got = model.last_logits(*sequence, std::span(tokens).first(1500));
    for (uint32_t i = 1500; i < tokens.size(); ++i) {
      const auto more = model.last_logits(*sequence, std::span(tokens).subspan(i, 1));
      got.insert(got.end(), more.begin(), more.end());
    }
    if (threads == 1) wanted = got;
    EXPECT_EQ(got, wanted) << threads << " threads";
  }
}

/// Memory of this process that no file stands behind, in bytes.
uint64_t own_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  }
  return 0;
}

TEST(Stage, AContextOf100000TakesWhatItWasSaidToTake) {
  constexpr uint32_t kPositions = 100'000;
  for (const KvBits bits : {KvBits::k16, KvBits::k8}) {
    Files files = open("llama");
    files.config.context = 131'072;
    StageOptions options = with(1, Isa::kBest);
    options.kv = bits;
    Loaded model = load(files, options);
    auto sequence = model.stage->new_sequence(kPositions);
    const auto tokens = test_tokens(files.config, 32);
    (void)model.last_logits(*sequence, std::span(tokens).first(31));
    const uint64_t said = kv_bytes(files.config, 0, files.config.layers, kPositions, bits);
    const auto written = sequence->write();
    ASSERT_TRUE(written.ok());
    const auto longer = stretch_state(*written, files.config, kPositions - 1);
    ASSERT_TRUE(longer.ok()) << longer.error().message;
    [[maybe_unused]] const uint64_t before = own_memory();
    ASSERT_TRUE(sequence->read(*longer).ok());
    (void)model.last_logits(*sequence, std::span(tokens).last(1));
    ASSERT_EQ(sequence->length(), kPositions);
    EXPECT_EQ(sequence->bytes(), said);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(own_memory(), before + said + said / 10);
#endif
  }
}

// A window of 16 positions, long past what it keeps: whatever is rolled back to is right or
// refused.
TEST(Stage, WindowsFreeTheirKeysAndValuesAndAnswersStayTheSame) {
  Files files = open("mistral");
  files.config.context = 4096;
  constexpr uint32_t kLength = 3000;
  const std::vector<uint32_t> tokens = test_tokens(files.config, kLength);
  for (const KvBits bits : {KvBits::k16, KvBits::k8}) {
    StageOptions options = with(2, Isa::kBest);
    options.kv = bits;
    Loaded model = load(files, options);
    uint64_t limit = UINT64_MAX;  // of a sequence's bytes
    const auto run = [&](Sequence& sequence, uint32_t end, uint32_t width) {
      std::vector<float> last;
      while (sequence.length() < end) {
        const uint32_t begin = sequence.length();
        const uint32_t count = std::min(width, end - begin);
        EXPECT_LE(sequence.bytes(), limit);
        last = model.last_logits(sequence, std::span(tokens).subspan(begin, count));
      }
      return last;
    };
    auto whole = model.stage->new_sequence();
    const std::vector<float> wanted = run(*whole, kLength, kLength);
    auto sequence = model.stage->new_sequence(kLength);
    const uint64_t told = kv_bytes(files.config, 0, files.config.layers, kLength, bits);
    limit = told;
    EXPECT_EQ(run(*sequence, kLength, 50), wanted);
    EXPECT_LE(sequence->bytes(), told);
    EXPECT_LT(told, kv_bytes_per_position(files.config, 0, files.config.layers, bits) * kLength);
    const uint32_t floor = sequence->floor();
    EXPECT_EQ(floor, kLength - 50 - kernels::kWindowMargin);
    EXPECT_EQ(window_floor(files.config, kLength - 50), floor);
    EXPECT_FALSE(sequence->rollback(floor - 1).ok());
    EXPECT_EQ(sequence->length(), kLength);
    ASSERT_TRUE(sequence->rollback(floor).ok());
    EXPECT_EQ(run(*sequence, kLength, 33), wanted);
    ASSERT_TRUE(sequence->rollback(0).ok());
    EXPECT_EQ(sequence->floor(), 0U);
    EXPECT_EQ(run(*sequence, kLength, 64), wanted);
    // What later positions depend on is the same, however it was come by.
    const auto one = sequence->digest();
    const auto other = whole->digest();
    ASSERT_TRUE(one.ok() && other.ok());
    EXPECT_EQ(*one, *other);
    const auto bytes = sequence->write();
    ASSERT_TRUE(bytes.ok());
    auto read = model.stage->new_sequence();
    ASSERT_TRUE(read->read(*bytes).ok());
    EXPECT_EQ(read->length(), kLength);
    StageOptions others = options;
    others.kv = bits == KvBits::k16 ? KvBits::k8 : KvBits::k16;
    EXPECT_FALSE(load(files, others).stage->new_sequence()->read(*bytes).ok());
    const std::vector<uint32_t> more = {1, 2, 3};
    EXPECT_EQ(model.last_logits(*read, more), model.last_logits(*whole, more));
  }
}

}  // namespace
}  // namespace tandem::model
