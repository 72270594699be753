// The hand-written scanners against the patterns that they stand for, run by PCRE2.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace tandem::text {
namespace {

// PCRE2 10.42 knows Unicode 14; it counts U+180E as white space, which Unicode no longer does.
constexpr int kUnicodeOfPcre = 14;
constexpr uint32_t kMongolianVowelSeparator = 0x180E;

uint32_t random_character(std::mt19937& random) {
  constexpr std::string_view kCommon = "aabzAZ019  \n\r\t'.,!?-/_sStTdDmMlLrRvVeE";
  constexpr uint32_t kSpecial[] = {0x17F,  0xA0,   0x3000, 0x2028, 0x85,  0x301, 0x4E2D,
                                   0x3042, 0x30FC, 0x663,  0x1C5,  0x2B0, 0x5D0, 0x1F600,
                                   0x200D, 0xAD,   0x2460, 0xFF11, 0xC4,  0xDF,  0x9FA5};
  switch (random() % 10) {
    case 0:
    case 1:
      return kSpecial[random() % std::size(kSpecial)];
    case 2: {
      const uint32_t c = random() % 0x3000;
      return is_assigned_by(c, kUnicodeOfPcre) && c != kMongolianVowelSeparator ? c : 'x';
    }
    case 3: {
      const uint32_t c = random() % 0x110000;
      const bool surrogate = c >= 0xD800 && c < 0xE000;
      const bool known = is_assigned_by(c, kUnicodeOfPcre) && c != kMongolianVowelSeparator;
      return !surrogate && known ? c : 0x378;
    }
    default:
      return static_cast<unsigned char>(kCommon[random() % kCommon.size()]);
  }
}

class Scanners : public testing::TestWithParam<Scanner> {};

TEST_P(Scanners, EqualTheirPatterns) {
  PreTokenizer part;
  part.type = PreTokenizer::Type::kSplit;
  part.pattern = {true, std::string(scanner_pattern(GetParam()))};
  const auto own = PreTokenizerChain::build({part}, true);
  const auto pcre = PreTokenizerChain::build({part}, false);
  ASSERT_TRUE(own.ok() && pcre.ok());
  ASSERT_EQ(find_scanner(part.pattern.text), GetParam());
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (size_t i = 1 + random() % 24; i > 0; --i) append_utf8(text, random_character(random));
    std::vector<Piece> a;
    std::vector<Piece> b;
    std::string text_a = text;
    std::string text_b = text;
    ASSERT_TRUE(own->split(text_a, true, a).ok());
    ASSERT_TRUE(pcre->split(text_b, true, b).ok());
    const auto show = [&text](const std::vector<Piece>& pieces) {
      std::string out;
      for (const Piece p : pieces) out += text.substr(p.begin, p.end - p.begin) + "|";
      return out;
    };
    ASSERT_EQ(show(a), show(b)) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Scanners,
                         testing::Values(Scanner::kGpt2, Scanner::kLlama3, Scanner::kQwen2,
                                         Scanner::kQwen35, Scanner::kO200k, Scanner::kTekken,
                                         Scanner::kDigits3, Scanner::kCjk, Scanner::kDeepseekText));

TEST(Utf8, ReplacesEachMaximalPartOnce) {
  EXPECT_EQ(to_valid_utf8("a\xFF"
                          "b"),
            "a\uFFFDb");
  EXPECT_EQ(to_valid_utf8("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xE2\x82"
                          "a"),
            "\uFFFDa");
  EXPECT_EQ(to_valid_utf8("\xC0\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\xA6\x8A"), "🦊");
  EXPECT_EQ(to_valid_utf8("\xF5\x80\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_TRUE(is_valid_utf8("aé€🦊"));
  EXPECT_FALSE(is_valid_utf8("aaaaaaaaaaaaaaaa\x80"));
}

TEST(Utf8, KnowsWhatIsCertain) {
  EXPECT_EQ(complete_utf8_prefix("ab"), 2U);
  EXPECT_EQ(complete_utf8_prefix("ab\xE2\x82"), 2U);
  EXPECT_EQ(complete_utf8_prefix("ab\xE2\x82\xAC"), 5U);
  EXPECT_EQ(complete_utf8_prefix("ab\xFF"), 3U);
  EXPECT_EQ(complete_utf8_prefix("\xF0\x9F\xA6"), 0U);
  EXPECT_EQ(complete_utf8_prefix("\x80\x80\x80"), 3U);
}

}  // namespace
}  // namespace tandem::text
