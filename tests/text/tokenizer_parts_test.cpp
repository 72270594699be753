// Every part that a tokenizer.json can name, on small hand-made files; and files that are wrong.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tandem::text {
namespace {

/// A tokenizer whose tokens are single characters of `alphabet`, with an unknown token 0 that is
/// never fused, so that what reaches the model is seen in the tokens.
Result<Tokenizer> of_characters(const std::string& parts, const std::string& more_vocab = "",
                                const std::string& merges = "", const std::string& model = "") {
  std::string vocab = R"("<unk>": 0)";
  int id = 1;
  for (const char* c : {"a", "b", "c", "A", "B", "1", "2", " ", ".", "!", "▁", "é", "e", "n", "\\n",
                        "Ġ", "_", "'", "s"}) {
    vocab += ", \"" + std::string(c) + "\": " + std::to_string(id++);
  }
  TokenizerFiles files;
  files.tokenizer_json = "{" + parts + (parts.empty() ? "" : ", ") +
                         R"("model": {"type": "BPE", "unk_token": "<unk>", )" + model +
                         R"("vocab": {)" + vocab + more_vocab + R"(}, "merges": [)" + merges +
                         "]}}";
  return Tokenizer::parse(files);
}

/// The tokens' spellings, with | between.
std::string tokens(const Result<Tokenizer>& tokenizer, std::string_view text,
                   EncodeOptions options = {.parse_control = true}) {
  if (!tokenizer.ok()) return tokenizer.error().message;
  const auto ids = tokenizer->encode(text, options);
  if (!ids.ok()) return ids.error().message;
  std::string out;
  for (const TokenId id : *ids) {
    if (!out.empty()) out += '|';
    out += tokenizer->token_text(id).value_or("?");
  }
  return out;
}

/// With a merge of every pair that could cross a cut, what stays apart was cut.
std::string pieces(const std::string& pre_tokenizer, std::string_view text) {
  const auto tokenizer = of_characters(
      R"("pre_tokenizer": )" + pre_tokenizer,
      R"(, "aa": 30, "a1": 31, "11": 32, "1a": 33, "a ": 34, " a": 35, "a.": 36, ".a": 37, "..": 38, "  ": 39, ".b": 40, "▁a": 41, "a▁": 42, "a_": 43, "a'": 44, "'s": 45)",
      R"("a a", "a 1", "1 1", "1 a", ["a", " "], [" ", "a"], "a .", ". a", ". .", [" ", " "], ". b", "▁ a", "a ▁", "a _", "a '", "' s")");
  return tokens(tokenizer, text);
}

TEST(Normalizers, ChangeTextBeforeItIsEncoded) {
  const auto with = [](const std::string& normalizer, std::string_view text) {
    return tokens(of_characters(R"("normalizer": )" + normalizer), text);
  };
  EXPECT_EQ(with("null", "aB"), "a|B");
  EXPECT_EQ(with(R"({"type": "NFC"})", "e\u0301"), "é");
  EXPECT_EQ(with(R"({"type": "NFKC"})", "ａ①"), "a|1");
  EXPECT_EQ(with(R"({"type": "NFD"})", "é"), "e|<unk>");
  EXPECT_EQ(with(R"({"type": "Lowercase"})", "AB"), "a|b");
  EXPECT_EQ(with(R"({"type": "Prepend", "prepend": "▁"})", "a"), "▁|a");
  EXPECT_EQ(with(R"({"type": "Prepend", "prepend": "▁"})", ""), "");
  EXPECT_EQ(with(R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})", "a b "),
            "a|▁|b|▁");
  EXPECT_EQ(with(R"({"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": "c"})", "ab1ba"),
            "c|1|c");
  EXPECT_EQ(with(R"({"type": "Strip", "strip_left": true, "strip_right": true})", " \u3000a b\n"),
            "a| |b");
  EXPECT_EQ(
      with(R"({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]})",
           "é"),
      "e");
}

TEST(PreTokenizers, CutTextIntoPieces) {
  const std::string split =
      R"({"type": "Split", "pattern": {"Regex": "1+"}, "invert": false, "behavior": )";
  EXPECT_EQ(pieces("null", "aa11aa"), "aa|11|aa");
  EXPECT_EQ(pieces(split + R"("Isolated"})", "a1a"), "a|1|a");
  EXPECT_EQ(pieces(split + R"("Removed"})", "a1a"), "a|a");
  EXPECT_EQ(pieces(split + R"("MergedWithPrevious"})", "a1a"), "a1|a");
  EXPECT_EQ(pieces(split + R"("MergedWithNext"})", "a1a"), "a|1a");
  EXPECT_EQ(
      pieces(
          R"({"type": "Split", "pattern": {"String": "."}, "invert": false, "behavior": "Contiguous"})",
          "a..a"),
      "a|..|a");
  EXPECT_EQ(
      pieces(
          R"({"type": "Split", "pattern": {"String": "."}, "invert": false, "behavior": "Isolated"})",
          "a..a"),
      "a|.|.|a");
  EXPECT_EQ(
      pieces(
          R"({"type": "Split", "pattern": {"Regex": "a+"}, "invert": true, "behavior": "Removed"})",
          "a1a"),
      "a|a");
  EXPECT_EQ(pieces(R"({"type": "Digits", "individual_digits": true})", "a11a"), "a|1|1|a");
  EXPECT_EQ(pieces(R"({"type": "Digits", "individual_digits": false})", "a11a"), "a|11|a");
  EXPECT_EQ(pieces(R"({"type": "Punctuation"})", "a..b"), "a|.|.|b");
  EXPECT_EQ(pieces(R"({"type": "Whitespace"})", "a  a.b"), "a|a|.|b");
  EXPECT_EQ(pieces(R"({"type": "Whitespace"})", "a_a.."), "a_|a|..");
  EXPECT_EQ(pieces(R"({"type": "WhitespaceSplit"})", "a. \n a"), "a.|a");
  EXPECT_EQ(pieces(R"({"type": "CharDelimiterSplit", "delimiter": "."})", "a.a"), "a|a");
  EXPECT_EQ(
      pieces(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"})", "a a"),
      "▁a|▁a");
  EXPECT_EQ(
      pieces(
          R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false})",
          "a a"),
      "a|▁a");
  EXPECT_EQ(pieces(R"({"type": "FixedLength", "length": 3})", "aaaa"), "aa|a|a");
  EXPECT_EQ(
      pieces(
          R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Digits"}]})",
          "a1 a"),
      "a|1|a");
}

TEST(PreTokenizers, ByteLevelPutsASpaceInFrontAndMapsBytes) {
  const auto make = [](const std::string& prefix) {
    return of_characters(R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": )" + prefix +
                         "}");
  };
  EXPECT_EQ(tokens(make("true"), "a b"), "Ġ|a|Ġ|b");
  EXPECT_EQ(tokens(make("false"), "a b"), "a|Ġ|b");
}

TEST(PreTokenizers, MetaspaceFirstPrependsOnlyAtTheBeginning) {
  const auto tokenizer = of_characters(
      R"("added_tokens": [{"id": 50, "content": "<s>", "special": true}],
         "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"})");
  EXPECT_EQ(tokens(tokenizer, "a<s>a"), "▁|a|<s>|a");
}

TEST(Decoders, TurnTokensIntoText) {
  const auto decoded = [](const std::string& decoder, const std::vector<TokenId>& ids) {
    const auto tokenizer =
        of_characters(R"("decoder": )" + decoder,
                      R"(, "<0xC3>": 60, "<0xA9>": 61, "a</w>": 62, "Ã": 63, "©": 64)");
    return tokenizer.ok() ? tokenizer->decode(ids, true) : tokenizer.error().message;
  };
  EXPECT_EQ(decoded("null", {1, 2}), "a b");
  EXPECT_EQ(decoded(R"({"type": "Fuse"})", {1, 2}), "ab");
  EXPECT_EQ(decoded(R"({"type": "ByteFallback"})", {1, 60, 61, 2}), "aéb");
  EXPECT_EQ(decoded(R"({"type": "ByteFallback"})", {60, 1, 60, 61, 60}),
            "\uFFFDa\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(decoded(R"({"type": "ByteLevel"})", {63, 64, 16, 1}), "é a");
  EXPECT_EQ(decoded(R"({"type": "ByteLevel"})", {63, 1}), "\uFFFDa");
  EXPECT_EQ(decoded(R"({"type": "Metaspace", "replacement": "▁"})", {11, 1, 11, 2}), "a b");
  EXPECT_EQ(decoded(R"({"type": "BPEDecoder"})", {62, 62}), "a a");
  EXPECT_EQ(
      decoded(
          R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": "X"}]})",
          {1, 2, 1, 1, 2}),
      "XaX");
  EXPECT_EQ(
      decoded(
          R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 1, "stop": 1}]})",
          {1, 1, 2, 1, 1}),
      "aba");
  EXPECT_EQ(
      decoded(R"({"type": "Replace", "pattern": {"Regex": "[ab]"}, "content": "c"})", {1, 2, 3}),
      "ccc");
}

TEST(Detokenizer, HoldsBytesUntilTheirCharacterIsCertain) {
  const auto tokenizer =
      of_characters(R"("decoder": {"type": "ByteLevel"})", R"(, "Ã": 63, "©": 64)");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  Detokenizer stream(*tokenizer);
  EXPECT_EQ(stream.push(1), "a");
  EXPECT_EQ(stream.push(63), "");
  EXPECT_EQ(stream.push(64), "é");
  EXPECT_EQ(stream.push(63), "");
  EXPECT_EQ(stream.push(1), "\uFFFDa");
  EXPECT_EQ(stream.push(63), "");
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.push(1), "a");
}

TEST(AddedTokens, AreFoundAsTheirFlagsSay) {
  const auto with = [](const std::string& flags, std::string_view text) {
    return tokens(
        of_characters(
            R"("normalizer": {"type": "Lowercase"}, "added_tokens": [{"id": 50, "content": "<A>", )" +
            flags + "}]"),
        text);
  };
  EXPECT_EQ(with(R"("special": true)", "a<A>b"), "a|<A>|b");
  EXPECT_EQ(with(R"("special": true)", "a<a>b"), "a|<unk>|a|<unk>|b");
  EXPECT_EQ(with(R"("normalized": true)", "a<a>b"), "a|<A>|b");
  EXPECT_EQ(with(R"("special": true, "lstrip": true, "rstrip": true)", "a  <A> \n b"), "a|<A>|b");
  EXPECT_EQ(with(R"("special": true, "single_word": true)", "a<A> <A>"), "a|<unk>|a|<unk>| |<A>");
  const auto longest = of_characters(
      R"("added_tokens": [{"id": 50, "content": "<a"}, {"id": 51, "content": "<ab"}])");
  EXPECT_EQ(tokens(longest, "<ab<ac"), "<ab|<a|c");
}

TEST(AddedTokens, ControlIsNeverMadeOfTextFromOutside) {
  TokenizerFiles files;
  files.tokenizer_json =
      R"({"added_tokens": [{"id": 9, "content": "<end>", "special": true},
                           {"id": 10, "content": "<think>", "special": false},
                           {"id": 11, "content": "<b>", "special": false},
                           {"id": 12, "content": "\n\n", "special": false}],
          "model": {"type": "BPE", "unk_token": "?", "ignore_merges": true,
                    "vocab": {"<": 0, "e": 1, "n": 2, "d": 3, ">": 4, "?": 5, "en": 6, "end": 7,
                              "<end": 8, "<end>": 9},
                    "merges": ["e n", "en d", "< end", "<end >"]}})";
  files.chat_template = "{{ '<think>\n\n' }}";
  const auto tokenizer = Tokenizer::parse(files);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_TRUE(tokenizer->is_control(10));
  EXPECT_FALSE(tokenizer->is_special(10));
  EXPECT_FALSE(tokenizer->is_control(11));
  EXPECT_FALSE(tokenizer->is_control(12));
  // Neither by matching nor by merges that lead there.
  EXPECT_EQ(tokens(tokenizer, "<end>", {}), "<end|>");
  EXPECT_EQ(tokens(tokenizer, "<end>"), "<end>");
  EXPECT_EQ(tokens(tokenizer, "<b>\n\n", {}), "<b>|\n\n");
  MarkedText mixed("<end>", false);
  mixed.append("<end>", true);
  mixed.append("<e", true);
  mixed.append("nd>", false);
  const auto ids = tokenizer->encode(mixed);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, (std::vector<TokenId>{9, 8, 4, 8, 4}));
}

TEST(Model, FallsBackToBytesAndUnknownTokens) {
  EXPECT_EQ(tokens(of_characters("", R"(, "<0xE2>": 60, "<0x82>": 61, "<0xAC>": 62)", "",
                                 R"("byte_fallback": true, )"),
                   "a€ß"),
            "a|<0xE2>|<0x82>|<0xAC>|<unk>");
  EXPECT_EQ(tokens(of_characters("", "", "", R"("fuse_unk": true, )"), "aßßb"), "a|<unk>|b");
  EXPECT_EQ(tokens(of_characters(""), "aßßb"), "a|<unk>|<unk>|b");
}

TEST(Model, MergesByRankThenFromTheLeft) {
  const std::string vocab = R"(, "aa": 30, "ab": 31, "aab": 32, "aaaa": 33)";
  EXPECT_EQ(tokens(of_characters("", vocab, R"("a b", "a a", "a ab")"), "aab"), "aab");
  EXPECT_EQ(tokens(of_characters("", vocab, R"("a a", "a b", "a ab")"), "aab"), "aa|b");
  EXPECT_EQ(tokens(of_characters("", vocab, R"("a a")"), "aaaaa"), "aa|aa|a");
  // Long words go through a heap instead: the same rules.
  const std::string word(1001, 'a');
  const auto ids = of_characters("", vocab, R"("a a", "aa aa")").value().encode(word);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->size(), 251U);
  EXPECT_EQ(ids->back(), 1);
}

TEST(Model, SpellsWordsWithPrefixAndSuffix) {
  const auto tokenizer = of_characters(
      "", R"(, "##b": 30, "##b</w>": 31, "a##b": 32, "ab</w>": 33)", R"(["a", "##b</w>"])",
      R"("continuing_subword_prefix": "##", "end_of_word_suffix": "</w>", )");
  EXPECT_EQ(tokens(tokenizer, "ab"), "ab</w>");
  EXPECT_EQ(tokens(tokenizer, "abb"), "a|##b|##b</w>");
}

TEST(PostProcessor, AddsTokensAroundTheText) {
  const auto tokenizer = of_characters(
      R"("post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
          {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "A"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "B"}}],
           "special_tokens": {"A": {"ids": [4]}, "B": {"ids": [5, 5]}}}]})");
  EXPECT_EQ(tokens(tokenizer, "a", {.add_special_tokens = true}), "A|a|B|B");
  EXPECT_EQ(tokens(tokenizer, "", {.add_special_tokens = true}), "A|B|B");
  // A rendered template that begins with the BOS does not get a second one.
  const auto ids = tokenizer->encode(MarkedText("Aa", false), true);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, (std::vector<TokenId>{4, 1, 5, 5}));
}

std::string refusal(const std::string& json) {
  TokenizerFiles files;
  files.tokenizer_json = json;
  const auto tokenizer = Tokenizer::parse(files);
  return tokenizer.ok() ? "accepted" : tokenizer.error().message;
}

TEST(TokenizerJson, RefusesWhatItDoesNotKnowByName) {
  const auto part = [](const std::string& p) {
    return refusal("{" + p + R"(, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  };
  EXPECT_EQ(part(R"("normalizer": {"type": "Precompiled"})"),
            "tokenizer.json: normalizer type \"Precompiled\"");
  EXPECT_EQ(part(R"("pre_tokenizer": {"type": "UnicodeScripts"})"),
            "tokenizer.json: pre_tokenizer type \"UnicodeScripts\"");
  EXPECT_EQ(part(R"("decoder": {"type": "WordPiece"})"),
            "tokenizer.json: decoder type \"WordPiece\"");
  EXPECT_EQ(part(R"("post_processor": {"type": "X"})"),
            "tokenizer.json: post_processor type \"X\"");
  EXPECT_NE(refusal(R"({"model": {"type": "Unigram"}})").find("model type \"Unigram\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"model": {"type": "BPE", "dropout": 0.1}})").find("model.dropout"),
            std::string::npos);
  EXPECT_NE(
      part(
          R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})")
          .find("pattern \"(\" at byte 1"),
      std::string::npos);
}

TEST(TokenizerJson, RefusesHostileFiles) {
  const auto model = [](const std::string& vocab, const std::string& merges) {
    return refusal(R"({"model": {"type": "BPE", "vocab": {)" + vocab + R"(}, "merges": [)" +
                   merges + "]}}");
  };
  EXPECT_EQ(model(R"("a": 0)", ""), "accepted");
  const std::pair<std::string, std::string> cases[] = {
      {model(R"("a": -1)", ""), "must have an id from 0 to"},
      {model(R"("a": 99999999999)", ""), "must have an id from 0 to"},
      {model(R"("a": 1.5)", ""), "must have an id from 0 to"},
      {model(R"("a": 0, "b": 0)", ""), "id 0 is given to \"a\" and to \"b\""},
      {model(R"("a": 0, "a": 1)", ""), "is in the vocabulary twice"},
      {model(R"("a": 0)", R"("a b")"),
       "model.merges[0]: names \"b\", which is not in the vocabulary"},
      {model(R"("a": 0)", R"("a a")"), "makes \"aa\", which is not in the vocabulary"},
      {model(R"("a": 0)", R"("a")"), "two tokens with one space"},
      {model(R"("a": 0)", R"(["a"])"), "pair of strings"},
      {model("\"" + std::string(70000, 'x') + "\": 0", ""), "is longer than 65536 bytes"},
      {refusal(""), "not JSON"},
      {refusal("[]"), "must be an object"},
      {refusal("{}"), "model must be an object"},
      {refusal(std::string(100000, '[')), "not JSON"},
      {refusal(R"({"normalizer": )" + std::string(50, '[') + std::string(50, ']') + "}"),
       "model must be"},
      {refusal(
           R"({"added_tokens": [{"id": 5, "content": "a"}], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"),
       "has id 5, but the vocabulary gives it 0"},
      {refusal(
           R"({"added_tokens": [{"id": 0, "content": ""}], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"),
       "without content"},
      {refusal(
           R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {"x": {"ids": [7]}}}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"),
       "token id 7, which is not in the vocabulary"},
      {refusal(
           R"({"added_tokens": [{"id": 0, "content": "a", "special": true}], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"),
       "how that one character is written"},
  };
  for (const auto& [found, expected] : cases) {
    EXPECT_NE(found.find(expected), std::string::npos) << found << "\n  lacks: " << expected;
  }
}

}  // namespace
}  // namespace tandem::text
