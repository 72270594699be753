// How fast a tokenizer encodes and decodes, on one core:
//   tokenizer_bench MODEL_FOLDER [TEXT_FILE]
// Without a file it makes 8 MB of mixed text: English, code, numbers, CJK, Cyrillic, emoji.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

using tandem::text::Detokenizer;
using tandem::text::Tokenizer;
using Clock = std::chrono::steady_clock;

constexpr size_t kMixedBytes = 8'000'000;
constexpr int kRounds = 5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Words drawn with a steeply falling frequency, as in real text, from a few scripts.
std::string mixed_text() {
  const std::vector<std::string> parts = {"the ",
                                          "of ",
                                          "and ",
                                          "a ",
                                          "to ",
                                          "in ",
                                          "is ",
                                          "was ",
                                          "he ",
                                          "that ",
                                          "it ",
                                          "his ",
                                          "her ",
                                          "with ",
                                          "as ",
                                          "had ",
                                          "for ",
                                          "she ",
                                          "not ",
                                          "but ",
                                          "river ",
                                          "mountain, ",
                                          "window. ",
                                          "\n\n",
                                          "'It's ",
                                          "don't ",
                                          "journey ",
                                          "1987 ",
                                          "3.14 ",
                                          "x = y + ",
                                          "if (n) {\n    ",
                                          "return ",
                                          "}\n",
                                          "Москва ",
                                          "слово ",
                                          "日本語の文章",
                                          "中文分词、",
                                          "한국어 ",
                                          "naïve ",
                                          "café ",
                                          "😀",
                                          "👍🏽 ",
                                          "हिन्दी ",
                                          "العربية ",
                                          "https://example.com/path?q=1 ",
                                          "Internationalization ",
                                          "neighbourhood ",
                                          "extraordinary ",
                                          "camelCaseIdentifier ",
                                          "snake_case_name "};
  std::string text;
  uint64_t state = 1;
  const auto next = [&state] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<uint32_t>(state >> 33);
  };
  while (text.size() < kMixedBytes) {
    const uint32_t r = next() % 1000;
    text += parts[r * r % 1000 * parts.size() / 1000];
    // Words nobody has seen: the cache does not help with these.
    if (next() % 12 == 0) {
      for (uint32_t i = 3 + next() % 9; i > 0; --i) text += static_cast<char>('a' + next() % 26);
      text += ' ';
    }
  }
  return text;
}

void measure(const Tokenizer& tokenizer, const char* name, const std::string& text) {
  double best = 1e9;
  size_t count = 0;
  std::vector<tandem::text::TokenId> ids;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    auto result = tokenizer.encode(text, {.parse_control = true});
    best = std::min(best, seconds_since(start));
    if (!result.ok()) {
      std::printf("%s: %s\n", name, result.error().message.c_str());
      return;
    }
    ids = std::move(*result);
    count = ids.size();
  }
  const auto start = Clock::now();
  Detokenizer stream(tokenizer);
  size_t bytes = 0;
  for (const auto id : ids) bytes += stream.push(id).size();
  bytes += stream.flush().size();
  const double decode = seconds_since(start);
  std::printf("%-28s %9zu bytes %8zu tokens  encode %7.1f MB/s  stream %6.1f MB/s (%zu bytes)\n",
              name, text.size(), count, static_cast<double>(text.size()) / best / 1e6,
              static_cast<double>(bytes) / decode / 1e6, bytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: tokenizer_bench MODEL_FOLDER [TEXT_FILE]\n");
    return 2;
  }
  const auto start = Clock::now();
  const auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  std::printf("loaded in %.0f ms\n", seconds_since(start) * 1e3);
  if (argc == 3) {
    std::ifstream stream(argv[2], std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), {});
    measure(*tokenizer, argv[2], text);
    return 0;
  }
  measure(*tokenizer, "mixed text", mixed_text());
  measure(*tokenizer, "one letter, 1 MB", std::string(1'000'000, 'a'));
  measure(*tokenizer, "spaces, 1 MB", std::string(1'000'000, ' '));
  std::string random;
  for (uint32_t i = 0, x = 1; i < 1'000'000; ++i) {
    x = x * 1664525 + 1013904223;
    random += static_cast<char>('a' + (x >> 24) % 26);
  }
  measure(*tokenizer, "random letters, 1 MB", random);
  return 0;
}
