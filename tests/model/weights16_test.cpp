// Weights of 16 bits: how near they come, that all ways of computing give the same bits, and what
// they take. The families' reference models lie on grids of 8 bits (oracle_test.cpp).
#include <gtest/gtest.h>

#include <chrono>

#include "model/routers.h"
#include "model/support.h"
#include "model/variants.h"
#include "weights/files.h"
#include "weights/packed_cache.h"

namespace tandem::model {
namespace {

// Blocks of 5 bits with scales and minimums of their own are on no grid of a row: 8 bits move them,
// 16 bits don't.
TEST(WeightsOf16Bits, LeaveTheErrorOfActivationsAlone) {
  const Variant variant = reference_models().front();
  Files files = open_path(TANDEM_SOURCE_DIR "/tests/data/gguf/gemma3-q5_1.gguf");
  const auto tokens = test_tokens(files.config, 48);
  PlainWeights weights(files.checkpoint.get());
  const std::vector<double> wanted = variant.model().run(weights, tokens);
  for (const WeightBits bits : {WeightBits::k8, WeightBits::k16}) {
    StageOptions options = with(2, Isa::kBest);
    options.weights = bits;
    Loaded model = load(files, options);
    const auto logits = model.logits(*model.stage->new_sequence(), tokens);
    ASSERT_EQ(logits.size(), wanted.size());
    const auto [rms, most] = error(wanted, {logits.begin(), logits.end()});
    printf("%d bits: rms %.4f %%, maximum %.4f %%\n", static_cast<int>(bits), 100 * rms,
           100 * most);
    if (bits == WeightBits::k8) {
      EXPECT_GT(rms, 0.005);
      continue;
    }
    EXPECT_LT(rms, 0.002);
    EXPECT_LT(most, 0.025);
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2}) {
      if (!available(isa)) continue;
      options.isa = isa;
      Loaded other = load(files, options);
      auto sequence = other.stage->new_sequence();
      std::vector<float> all;
      for (size_t begin = 0; begin < tokens.size(); begin += 7) {
        const size_t count = std::min<size_t>(7, tokens.size() - begin);
        const auto part = other.logits(*sequence, std::span(tokens).subspan(begin, count));
        all.insert(all.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(all == logits) << name(isa);
    }
  }
}

std::vector<Variant> mixtures() {
  std::vector<Variant> all = variants();
  std::erase_if(all, [](const Variant& variant) { return variant.plain.experts.count == 0; });
  return all;
}

// Mixtures of experts of random weights that lie on no grid.
class Mixtures : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    auto parsed = parse_config(GetParam().config);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    config_ = *parsed;
    tokens_ = test_tokens(config_, 48);
    wanted_ = GetParam().model().run(weights_, tokens_);
    resolve_prefix(config_, [&](std::string_view name) { return weights_.find(name) != nullptr; });
    options_ = with(2, Isa::kBest);
    options_.weights = WeightBits::k16;
  }

  std::vector<float> logits(const StageOptions& options, size_t width = 48) {
    Loaded model = load(config_, weights_, options);
    auto sequence = model.stage->new_sequence();
    std::vector<float> all;
    for (size_t begin = 0; begin < tokens_.size(); begin += width) {
      const size_t count = std::min(width, tokens_.size() - begin);
      const auto part = model.logits(*sequence, std::span(tokens_).subspan(begin, count));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  StageOptions whole_stage() const {
    StageOptions options = options_;
    options.last_layer = config_.layers;
    return options;
  }

  static void write_all(weights::PackedStore& cache) {
    dynamic_cast<weights::PackedCache&>(cache).finish(
        std::chrono::steady_clock::now() + std::chrono::minutes(1), nullptr, {});
  }

  PlainWeights weights_{nullptr, PlainWeights::Grid::kNone};
  ModelConfig config_;
  std::vector<uint32_t> tokens_;
  std::vector<double> wanted_;
  StageOptions options_;
};

// All positions count. Where a choice of experts is closer than the error of its logits, the pass
// in double precision follows it (routers.h), and only there.
TEST_P(Mixtures, AreAsNearAsDenseModels) {
  for (const WeightBits bits : {WeightBits::k8, WeightBits::k16}) {
    SCOPED_TRACE(static_cast<int>(bits));
    Routers routers(GetParam().plain.experts, tokens_.size());
    StageOptions options = options_;
    options.weights = bits;
    options.profile = routers.listener();
    const auto had = logits(options);
    const auto followed = routers.follow(GetParam().model()).run(weights_, tokens_);
    const std::vector<double> mine(had.begin(), had.end());
    const auto [apart, apart_most] = error(wanted_, mine);
    const auto [rms, most] = error(followed, mine);
    const auto [router_rms, router_most] = routers.errors();
    printf("%s, %d bits: rms %.4f %%, maximum %.4f %% (close choices not followed: %.4f, %.4f)\n",
           GetParam().name.c_str(), static_cast<int>(bits), 100 * rms, 100 * most, 100 * apart,
           100 * apart_most);
    routers.print();
    const bool sixteen = bits == WeightBits::k16;
    if (!sixteen) {
      EXPECT_GT(rms, 0.004);
    }
    EXPECT_LT(rms, sixteen ? 0.004 : 0.06);
    EXPECT_LT(router_rms, sixteen ? 0.004 : 0.04);
    if (sixteen) {
      EXPECT_LT(most, 0.03);
      EXPECT_LT(router_most, 0.03);
    }
    EXPECT_LE(routers.changed().size(), routers.choices() / (sixteen ? 96 : 16));
  }
}

TEST_P(Mixtures, GiveTheSameBitsHoweverTheyAreComputed) {
  const std::vector<float> whole = logits(options_);
  for (const Isa isa : kIsas) {
    if (!available(isa)) continue;
    for (const uint32_t threads : {1U, 3U}) {
      StageOptions options = options_;
      options.isa = isa;
      options.threads = threads;
      for (const size_t width : {1U, 7U, 48U}) {
        EXPECT_TRUE(logits(options, width) == whole)
            << name(isa) << ", " << threads << " threads, passes of " << width;
      }
    }
  }
  // In two stages.
  options_.pool = std::make_shared<ThreadPool>(2);
  auto ends = Ends::load(config_, options_, weights_, {});
  ASSERT_TRUE(ends.ok()) << ends.error().message;
  HiddenStates hidden = *(*ends)->embed(tokens_, 0);
  for (const auto& [first, last] : {std::pair{0U, 3U}, std::pair{3U, config_.layers}}) {
    options_.first_layer = first;
    options_.last_layer = last;
    auto stage = Stage::load(config_, options_, weights_, {});
    ASSERT_TRUE(stage.ok()) << stage.error().message;
    EXPECT_EQ((*stage)->bytes(), stage_bytes(config_, options_));
    ASSERT_TRUE((*stage)->run(*(*stage)->new_sequence(), 0, hidden).ok());
  }
  std::vector<float> split;
  ASSERT_TRUE((*ends)->logits(hidden, 0, hidden.tokens(), split).ok());
  EXPECT_TRUE(split == whole);
  EXPECT_EQ((*ends)->bytes(), ends_bytes(config_, options_.weights));
}

TEST_P(Mixtures, AreKeptInTheCacheAndStayOnDisk) {
  const std::vector<float> whole = logits(options_);
  const weights::TemporaryFolder folder;
  weights::PackedCacheOptions cache;
  cache.folder = folder / "weights";
  // What is there of 8 bits is not what 16 need.
  const auto to_read = [&](WeightBits bits, const weights::PackedCache& kept) {
    return tensors_to_read(config_, 0, config_.layers, bits, weights_, &kept).size();
  };
  StageOptions eight = options_;
  eight.weights = WeightBits::k8;
  eight.cache = std::make_shared<weights::PackedCache>(cache);
  const size_t all = to_read(WeightBits::k16, weights::PackedCache(cache));
  logits(eight);
  write_all(*eight.cache);
  EXPECT_LT(to_read(WeightBits::k8, weights::PackedCache(cache)), all);
  EXPECT_EQ(to_read(WeightBits::k16, weights::PackedCache(cache)), all);
  for (int start = 0; start < 2; ++start) {
    options_.cache = std::make_shared<weights::PackedCache>(cache);
    EXPECT_TRUE(logits(options_) == whole) << "start " << start;
    write_all(*options_.cache);
  }
  const weights::PackedCache kept(cache);
  EXPECT_LT(to_read(WeightBits::k16, kept), all);
  EXPECT_GT(cached_bytes(config_, WeightBits::k16, weights_, kept),
            stage_bytes(config_, whole_stage()) * 9 / 10);
  for (const uint64_t limit : {uint64_t{0}, uint64_t{60'000}, uint64_t{1} << 40}) {
    options_.experts_memory = limit;
    options_.cache = std::make_shared<weights::PackedCache>(cache);
    for (const size_t width : {1U, 48U}) EXPECT_TRUE(logits(options_, width) == whole) << limit;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Mixtures, testing::ValuesIn(mixtures()),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace tandem::model
