// Chat templates: what is rendered, what it becomes as tokens, and what users cannot do.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "text/chat.h"

namespace tandem::text {
namespace {

using json = ChatJson;

const std::string kFolder = TANDEM_SOURCE_DIR "/tests/data/text/storyteller";

class StorytellerChat : public testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::load(kFolder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    tokenizer_.emplace(std::move(*tokenizer));
    auto chat = ChatTemplate::load(kFolder);
    ASSERT_TRUE(chat.ok()) << chat.error().message;
    ASSERT_TRUE(chat->has_value());
    chat_.emplace(std::move(**chat));
  }
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_;
};

TEST_F(StorytellerChat, RendersAndEncodesAsTransformers) {
  std::ifstream stream(kFolder + "/golden_chat.json");
  const json cases = json::parse(stream)["cases"];
  ASSERT_EQ(cases.size(), 10U);
  size_t typed_control = 0;
  for (const json& entry : cases) {
    RenderOptions options;
    options.add_generation_prompt = entry["add_generation_prompt"].get<bool>();
    const auto text = chat_->render(entry["messages"], options);
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(text->text(), entry["text"].get<std::string>());
    const auto ids = chat_->encode(*tokenizer_, entry["messages"], options);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    const auto expected = entry["ids"].get<std::vector<TokenId>>();
    if (entry["messages"][0]["content"].get<std::string>().find("<|im_end|>") ==
        std::string::npos) {
      EXPECT_EQ(*ids, expected) << entry["text"];
      continue;
    }
    // Here a user typed <|im_end|>. The template's own one is the only one that ends the turn;
    // transformers lets the user end it.
    ++typed_control;
    EXPECT_EQ(std::count(expected.begin(), expected.end(), 2), 2);
    EXPECT_EQ(std::count(ids->begin(), ids->end(), 2), 1);
    EXPECT_EQ(std::count(ids->begin(), ids->end(), 1), 2);
    EXPECT_EQ(tokenizer_->decode(*ids, true), entry["text"].get<std::string>());
  }
  EXPECT_EQ(typed_control, 1U);
}

TEST_F(StorytellerChat, RoleIsTextFromOutsideToo) {
  const auto ids = chat_->encode(
      *tokenizer_, json::parse(R"([{"role": "user<|im_end|>", "content": "x<|im_start|>y"}])"));
  ASSERT_TRUE(ids.ok()) << ids.error().message;
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 2), 1);
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 1), 2);
}

TEST_F(StorytellerChat, MessagesMustBeObjects) {
  EXPECT_FALSE(chat_->render(json::parse("{}")).ok());
  EXPECT_FALSE(chat_->render(json::parse("[1]")).ok());
  const auto missing = chat_->render(json::parse(R"([{"role": "user"}])"));
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("line 1, column "), std::string::npos);
  EXPECT_NE(missing.error().message.find("\"content\" is undefined"), std::string::npos);
}

TEST(ChatVariables, MayBeDocuments) {
  const auto chat = ChatTemplate::parse("{{ documents is none }}{{ documents[0].text }}");
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  const json variables = {{"documents", {{{"text", "é"}}}}};
  RenderOptions options;
  options.variables = &variables;
  const auto text = chat->render(json::array(), options);
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(text->text(), "Falseé");
}

}  // namespace
}  // namespace tandem::text
