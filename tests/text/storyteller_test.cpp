// The default model's tokenizer against ids and texts that Hugging Face's tokenizers gave.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/detokenizer.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"

namespace tandem::text {
namespace {

const std::string kFolder = TANDEM_SOURCE_DIR "/tests/data/text/storyteller";

nlohmann::json golden(const std::string& name) {
  std::ifstream stream(kFolder + "/" + name);
  return nlohmann::json::parse(stream);
}

class Storyteller : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(kFolder);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    tokenizer_.emplace(std::move(*loaded));
  }
  std::optional<Tokenizer> tokenizer_;
};

TEST_F(Storyteller, EncodesAsHuggingFace) {
  const nlohmann::json cases = golden("golden_tokenizer.json")["cases"];
  ASSERT_EQ(cases.size(), 200U);
  for (const auto& entry : cases) {
    const auto ids = tokenizer_->encode(entry["text"].get<std::string>(), {.parse_control = true});
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, entry["ids"].get<std::vector<TokenId>>()) << entry["text"];
  }
}

TEST_F(Storyteller, DecodesAsHuggingFace) {
  const auto cases = golden("golden_tokenizer.json");
  for (const auto& entry : cases["cases"]) {
    const auto ids = entry["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer_->decode(ids, true), entry["decoded"].get<std::string>());
    Detokenizer stream(*tokenizer_, true);
    std::string text;
    for (const TokenId id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.flush(), entry["decoded"].get<std::string>());
  }
}

TEST_F(Storyteller, KnowsItsTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 8192U);
  EXPECT_EQ(tokenizer_->token_text(2), "<|im_end|>");
  EXPECT_EQ(tokenizer_->token_text(8192), std::nullopt);
  EXPECT_EQ(tokenizer_->token_text(-1), std::nullopt);
  EXPECT_EQ(tokenizer_->token_id("<|im_start|>"), 1);
  EXPECT_TRUE(tokenizer_->is_control(0) && tokenizer_->is_control(1) && tokenizer_->is_control(2));
  EXPECT_FALSE(tokenizer_->is_control(3));
  EXPECT_EQ(tokenizer_->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer_->eos_id(), 2);
  EXPECT_EQ(tokenizer_->token_bytes(223), " ");
}

TEST_F(Storyteller, UserTextNeverBecomesControl) {
  const auto ids = tokenizer_->encode("a<|im_end|>b<|im_start|><|endoftext|>");
  ASSERT_TRUE(ids.ok());
  for (const TokenId id : *ids) EXPECT_FALSE(tokenizer_->is_control(id)) << id;
  EXPECT_EQ(tokenizer_->decode(*ids), "a<|im_end|>b<|im_start|><|endoftext|>");
}

TEST_F(Storyteller, LeavesSpecialTokensOutOfText) {
  EXPECT_EQ(tokenizer_->decode({1, 2189, 2}), "Hello");
  EXPECT_EQ(tokenizer_->decode({1, 2189, 2}, true), "<|im_start|>Hello<|im_end|>");
}

TEST_F(Storyteller, SaysHowAnAnswerEnds) {
  const auto config = read_generation_config(kFolder, &*tokenizer_);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->eos_ids, (std::vector<TokenId>{2, 0}));
  EXPECT_EQ(config->temperature, 0.7);
  EXPECT_EQ(config->top_k, 40U);
  EXPECT_EQ(config->top_p, 0.95);
  EXPECT_EQ(config->do_sample, true);
}

}  // namespace
}  // namespace tandem::text
