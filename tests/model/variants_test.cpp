// Models of the families in shapes and settings that the reference models don't have, against a
// plain forward pass in double precision; and that one against transformers' answers.
#include "model/variants.h"

#include <gtest/gtest.h>

#include <cstring>

#include "model/routers.h"
#include "model/support.h"
#include "weights/safetensors.h"

namespace tandem::model {
namespace {

class Variants : public testing::TestWithParam<Variant> {};

TEST_P(Variants, LogitsAreWithinTheContractsErrorOfAPlainPass) {
  const Variant& variant = GetParam();
  auto config = parse_config(variant.config);
  ASSERT_TRUE(config.ok()) << config.error().message;
  const auto tokens = test_tokens(*config, 48);
  PlainWeights weights;
  const std::vector<double> wanted = variant.model().run(weights, tokens);
  resolve_prefix(*config, [&](std::string_view name) { return weights.find(name) != nullptr; });

  Loaded model = load(*config, weights, with(2, Isa::kBest));
  const auto whole = model.logits(*model.stage->new_sequence(), tokens);
  ASSERT_EQ(whole.size(), wanted.size());
  const auto [rms, most] = error(wanted, {whole.begin(), whole.end()});
  printf("%s: rms %.4f %%, maximum %.4f %% of the standard deviation\n", variant.name.c_str(),
         100 * rms, 100 * most);
  const bool sensitive = config->moe.experts != 0 || config->recurrent_layers(0, 4) != 0;
  EXPECT_LT(rms, sensitive ? 0.004 : 0.002);
  EXPECT_LT(most, sensitive ? 0.03 : 0.025);

  // The same bits whatever computes them, however the passes are cut, and after a rollback.
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kBest}) {
    if (!available(isa)) continue;
    Loaded other = load(*config, weights, with(1, isa));
    for (const size_t width : {1U, 7U, 30U}) {
      auto sequence = other.stage->new_sequence();
      std::vector<float> logits;
      for (size_t begin = 0; begin < tokens.size(); begin += width) {
        const size_t count = std::min(width, tokens.size() - begin);
        const auto part = other.logits(*sequence, std::span(tokens).subspan(begin, count));
        logits.insert(logits.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(logits == whole) << name(isa) << ", passes of " << width;
      const uint32_t kept = std::max(11U, sequence->floor());
      ASSERT_TRUE(sequence->rollback(kept).ok());
      const auto again = other.logits(*sequence, std::span(tokens).subspan(kept));
      EXPECT_TRUE(std::equal(again.begin(), again.end(),
                             whole.begin() + static_cast<std::ptrdiff_t>(kept * config->vocab)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Variants, testing::ValuesIn(variants()),
                         [](const auto& variant) { return variant.param.name; });

// At 8 bits, which hold the reference models' weights exactly, each choice of experts is the exact
// one, though some are closer than the error of their logits: so all of their positions can be
// compared.
TEST(PlainModel, ReferenceMixturesChooseWhatItChooses) {
  size_t mixtures = 0;
  for (const Variant& variant : reference_models()) {
    if (variant.plain.experts.count == 0) continue;
    SCOPED_TRACE(variant.name);
    ++mixtures;
    Files files = open(variant.name);
    const auto golden =
        weights::SafetensorsFile::open(oracle_folder() / variant.name / "golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    const auto tokens = (*golden)->read_raw(*(*golden)->find("tokens"));
    ASSERT_TRUE(tokens.ok());
    std::vector<uint32_t> ids(tokens->bytes.size() / sizeof(uint32_t));
    std::memcpy(ids.data(), tokens->bytes.data(), tokens->bytes.size());
    Routers routers(variant.plain.experts, ids.size());
    StageOptions options = with(2, Isa::kBest);
    options.profile = routers.listener();
    Loaded model = load(files, options);
    const auto had = model.logits(*model.stage->new_sequence(), ids);
    PlainWeights weights(files.checkpoint.get());
    const auto wanted = routers.follow(variant.model()).run(weights, ids);
    const auto [rms, most] = error(wanted, {had.begin(), had.end()});
    printf("%s: rms %.4f %%, maximum %.4f %%\n", variant.name.c_str(), 100 * rms, 100 * most);
    routers.print();
    EXPECT_TRUE(routers.changed().empty());
    EXPECT_EQ(routers.choices(), ids.size() * files.config.layers);
    EXPECT_LT(rms, 0.004);
    EXPECT_LT(routers.errors().first, 0.004);
  }
  EXPECT_EQ(mixtures, 3U);
}

TEST(PlainModel, GivesTransformersAnswersForTheReferenceModels) {
  for (const Variant& variant : reference_models()) {
    SCOPED_TRACE(variant.name);
    const Files files = open(variant.name);
    PlainWeights weights(files.checkpoint.get());
    const auto golden =
        weights::SafetensorsFile::open(oracle_folder() / variant.name / "golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    const auto tokens = (*golden)->read_raw(*(*golden)->find("tokens"));
    const auto logits = (*golden)->read_raw(*(*golden)->find("logits"));
    ASSERT_TRUE(tokens.ok() && logits.ok());
    std::vector<uint32_t> ids(tokens->bytes.size() / sizeof(uint32_t));
    std::vector<float> wanted(logits->bytes.size() / sizeof(float));
    std::memcpy(ids.data(), tokens->bytes.data(), tokens->bytes.size());
    std::memcpy(wanted.data(), logits->bytes.data(), logits->bytes.size());
    const auto had = variant.model().run(weights, ids);
    ASSERT_EQ(had.size(), wanted.size());
    const auto [rms, most] = error({wanted.begin(), wanted.end()}, had);
    // A delta net's norm magnifies binary32's own error where its output is nearly zero.
    const bool sensitive = !variant.plain.recurrent.empty();
    EXPECT_LT(rms, sensitive ? 2e-5 : 1e-5);
    EXPECT_LT(most, sensitive ? 5e-4 : 1e-4);
  }
}

}  // namespace
}  // namespace tandem::model
