// Tokenizers of GGUF files: the same ids as from a tokenizer.json, and merging by scores.
#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace tandem::text {
namespace {

const std::string kFolder = TANDEM_SOURCE_DIR "/tests/data/text/storyteller";

nlohmann::json read(const std::string& name) {
  std::ifstream stream(kFolder + "/" + name);
  return nlohmann::json::parse(stream);
}

TEST(Vocabulary, GivesTheIdsOfTheTokenizerThatItWasMadeFrom) {
  const nlohmann::json json = read("tokenizer.json");
  Vocabulary vocabulary;
  vocabulary.splitter = "qwen2";
  vocabulary.tokens.resize(8192);
  vocabulary.kinds.assign(8192, TokenKind::kUnused);
  for (const auto& [token, id] : json["model"]["vocab"].items()) {
    vocabulary.tokens[id.get<size_t>()] = token;
    vocabulary.kinds[id.get<size_t>()] = TokenKind::kNormal;
  }
  for (const auto& token : json["added_tokens"]) {
    vocabulary.tokens[token["id"].get<size_t>()] = token["content"];
    vocabulary.kinds[token["id"].get<size_t>()] =
        token["special"].get<bool>() ? TokenKind::kControl : TokenKind::kUserDefined;
  }
  for (const auto& merge : json["model"]["merges"]) {
    vocabulary.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                                  : merge[0].get<std::string>() + " " +
                                                        merge[1].get<std::string>());
  }
  const auto tokenizer = Tokenizer::from_vocabulary(vocabulary, "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const nlohmann::json golden = read("golden_tokenizer.json");
  for (const auto& entry : golden["cases"]) {
    const auto ids = tokenizer->encode(entry["text"].get<std::string>(), {.parse_control = true});
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, entry["ids"].get<std::vector<TokenId>>()) << entry["text"];
    EXPECT_EQ(tokenizer->decode(*ids, true), entry["decoded"].get<std::string>());
  }
}

Vocabulary scored(const std::vector<std::pair<std::string, float>>& tokens) {
  Vocabulary vocabulary;
  vocabulary.model = Vocabulary::Model::kScores;
  vocabulary.tokens = {"<unk>", "<s>", "</s>"};
  vocabulary.scores = {0, 0, 0};
  vocabulary.kinds = {TokenKind::kUnknown, TokenKind::kControl, TokenKind::kControl};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    vocabulary.tokens.emplace_back(text);
    vocabulary.scores.push_back(0);
    vocabulary.kinds.push_back(TokenKind::kByte);
  }
  for (const auto& [token, score] : tokens) {
    vocabulary.tokens.push_back(token);
    vocabulary.scores.push_back(score);
    vocabulary.kinds.push_back(TokenKind::kNormal);
  }
  vocabulary.unk_id = 0;
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  return vocabulary;
}

std::vector<std::string> pieces(const Tokenizer& tokenizer, const std::string& text,
                                bool special = false) {
  std::vector<std::string> result;
  const auto ids = tokenizer.encode(text, {.add_special_tokens = special, .parse_control = true});
  EXPECT_TRUE(ids.ok());
  for (const TokenId id : *ids) result.emplace_back(*tokenizer.token_text(id));
  return result;
}

using Texts = std::vector<std::string>;

TEST(Vocabulary, MergesByScoreThenFromTheLeft) {
  const auto tokenizer = Tokenizer::from_vocabulary(
      scored({{"a", -9}, {"b", -9}, {"▁", -9}, {"aa", -3}, {"aaa", -4}, {"ab", -2}, {"▁a", -8}}),
      "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(pieces(*tokenizer, "ab"), (Texts{"▁", "ab"}));
  EXPECT_EQ(pieces(*tokenizer, "aab"), (Texts{"▁a", "ab"}));
  // [aa][aa][a]: "aaa" can be made at two places with one score, and the left one is taken.
  EXPECT_EQ(pieces(*tokenizer, "baaaaa"), (Texts{"▁", "b", "aa", "aaa"}));
  EXPECT_EQ(pieces(*tokenizer, "a\xc3\xa9"), (Texts{"▁a", "<0xC3>", "<0xA9>"}));
  EXPECT_EQ(tokenizer->decode(*tokenizer->encode("ab a\xc3\xa9")), "ab a\xc3\xa9");
}

TEST(Vocabulary, AddsEndsAndASpaceBeforeEveryStretchOfText) {
  Vocabulary vocabulary = scored({{"a", -9}, {"▁", -9}, {"▁a", -8}});
  auto tokenizer = Tokenizer::from_vocabulary(vocabulary, "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(pieces(*tokenizer, "a", true), (Texts{"<s>", "▁a"}));
  EXPECT_EQ(pieces(*tokenizer, "a</s>a"), (Texts{"▁a", "</s>", "▁a"}));
  vocabulary.add_space_prefix = false;
  vocabulary.add_bos = false;
  vocabulary.add_eos = true;
  tokenizer = Tokenizer::from_vocabulary(vocabulary, "");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(pieces(*tokenizer, "a", true), (Texts{"a", "</s>"}));
}

TEST(Vocabulary, KnowsTheUnknownTokenWhenItIsWrittenOut) {
  Vocabulary vocabulary = scored({{"a", -9}, {"▁", -9}, {"▁a", -8}, {"[PAD1]", 0}});
  vocabulary.kinds.back() = TokenKind::kUnknown;
  const auto tokenizer = Tokenizer::from_vocabulary(vocabulary, "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(pieces(*tokenizer, "a<unk>a"), (Texts{"▁a", "<unk>", "▁a"}));
  const auto typed = tokenizer->encode("<unk>");
  ASSERT_TRUE(typed.ok());
  EXPECT_EQ(std::count(typed->begin(), typed->end(), 0), 0);
  // What only fills the table up is no token of a text.
  EXPECT_GT(pieces(*tokenizer, "[PAD1]").size(), 5U);
}

// As Phi-3's: "</s>" is not a control token there, but takes white space like one.
TEST(Vocabulary, DropsWhiteSpaceAfterControlTokensWhereTheFamilyDoes) {
  Vocabulary vocabulary =
      scored({{"a", -9}, {"▁", -9}, {"▁a", -8}, {"<|end|>", 0}, {"<|endoftext|>", 0}});
  vocabulary.kinds[2] = TokenKind::kUserDefined;
  vocabulary.kinds.end()[-2] = vocabulary.kinds.end()[-1] = TokenKind::kControl;
  vocabulary.control_takes_spaces = true;
  const auto tokenizer = Tokenizer::from_vocabulary(vocabulary, "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(pieces(*tokenizer, "<|end|> \n a"), (Texts{"<|end|>", "▁a"}));
  EXPECT_EQ(pieces(*tokenizer, "</s>  a"), (Texts{"</s>", "▁a"}));
  EXPECT_EQ(pieces(*tokenizer, "<|endoftext|> a"), (Texts{"<|endoftext|>", "▁", "▁a"}));
  EXPECT_EQ(pieces(*tokenizer, "<s> a"), (Texts{"<s>", "▁", "▁a"}));
}

TEST(Vocabulary, RefusesWhatMakesNoSense) {
  const auto refusal = [](auto change, Vocabulary vocabulary) {
    change(vocabulary);
    const auto tokenizer = Tokenizer::from_vocabulary(vocabulary, "");
    return tokenizer.ok() ? "was accepted" : tokenizer.error().message;
  };
  Vocabulary merges;
  merges.splitter = "gpt-2";
  merges.tokens = {"a", "b", "ab"};
  merges.kinds.assign(3, TokenKind::kNormal);
  EXPECT_EQ(refusal([](auto&) {}, merges), "was accepted");
  const std::pair<std::function<void(Vocabulary&)>, const char*> cases[] = {
      {[](auto& v) { v.splitter = "klingon"; }, "splitter \"klingon\" is not known"},
      {[](auto& v) { v.tokens.clear(); }, "expected 1 to"},
      {[](auto& v) { v.kinds.pop_back(); }, "expected a type for each of 3 tokens, found 2"},
      {[](auto& v) { v.bos_id = 3; }, "bos token: expected an id below 3, found 3"},
      {[](auto& v) { v.eos_id = -1; }, "eos token: expected an id below 3, found -1"},
      {[](auto& v) { v.merges = {"ab"}; }, "merge 0, \"ab\": expected two tokens"},
      {[](auto& v) { v.merges = {""}; }, "merge 0, \"\": expected two tokens"},
      {[](auto& v) {
         v.merges = {"a b", "b a"};
       },
       "merge 1, \"b a\": expected tokens of the"},
      {[](auto& v) { v.tokens[0].assign(70000, 'x'); }, "token 0 is longer than 65536 bytes"},
      {[](auto& v) { v.model = Vocabulary::Model::kScores; }, "expected a score for each"},
  };
  for (const auto& [change, error] : cases) {
    EXPECT_NE(refusal(change, merges).find(error), std::string::npos) << refusal(change, merges);
  }
  EXPECT_NE(refusal([](auto& v) { v.scores[5] = NAN; }, scored({})).find("finite score"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::text
