#include "text/scanner.h"

#include <array>

#include "text/unicode.h"

namespace tandem::text {

namespace {

struct Known {
  Scanner scanner;
  std::string_view pattern;
};

// The spellings found in published tokenizer.json files.
constexpr std::array kKnown = {
    Known{Scanner::kGpt2,
          R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    Known{
        Scanner::kLlama3,
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    Known{
        Scanner::kQwen2,
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    Known{
        Scanner::kQwen35,
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    Known{
        Scanner::kO200k,
        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    Known{
        Scanner::kTekken,
        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    Known{Scanner::kDigits3, R"(\p{N}{1,3})"},
    Known{Scanner::kCjk, "[一-龥\u3040-ゟ゠-ヿ]+"},
    Known{Scanner::kDeepseekText,
          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
          "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|"
          "\\s+(?!\\S)|\\s+"},
};

constexpr unsigned kWord = kLetter;
constexpr unsigned kWordMark = kLetter | kMark;

bool is_newline(char c) {
  return c == '\r' || c == '\n';
}
bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// A text with the class of the character at any place.
class Reader {
 public:
  explicit Reader(std::string_view text)
      : classes_(CharClasses::get()), begin_(text.data()), size_(text.size()) {}

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] char byte(size_t at) const { return at < size_ ? begin_[at] : '\0'; }
  /// Class bits of the character at `at`, and its length; 0 and 0 at the end.
  unsigned at(size_t at, size_t& length) const {
    if (at >= size_) {
      length = 0;
      return 0;
    }
    return classes_.of(decode_valid(begin_ + at, length));
  }
  /// Whether the character at `at` is there and has one of the classes.
  [[nodiscard]] bool is(size_t at, unsigned classes) const {
    size_t length = 0;
    return (this->at(at, length) & classes) != 0;
  }
  /// Whether the character at `at` is there and has none of the classes.
  [[nodiscard]] bool is_other(size_t at, unsigned classes) const {
    size_t length = 0;
    const unsigned found = this->at(at, length);
    return length != 0 && (found & classes) == 0;
  }
  /// The end of the run of characters from `at` that have one of the classes.
  [[nodiscard]] size_t run(size_t at, unsigned classes) const {
    size_t length = 0;
    while ((this->at(at, length) & classes) != 0) at += length;
    return at;
  }
  /// The end of the run of characters from `at` that have none of the classes.
  [[nodiscard]] size_t run_other(size_t at, unsigned classes) const {
    size_t length = 0;
    while (at < size_ && (this->at(at, length) & classes) == 0) at += length;
    return at;
  }
  [[nodiscard]] size_t newlines(size_t at) const {
    while (at < size_ && is_newline(begin_[at])) ++at;
    return at;
  }

 private:
  const CharClasses& classes_;
  const char* begin_;
  size_t size_;
};

/// The end of an English contraction at `at`; `at` itself if there is none. Without regard to
/// case, U+017F (long s) is an s.
size_t contraction(const Reader& r, size_t at, bool any_case) {
  if (r.byte(at) != '\'') return at;
  const auto lower = [&](size_t place) {
    const char c = r.byte(place);
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = lower(at + 1);
  const char second = lower(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
      (first == 'l' && second == 'l')) {
    return at + 3;
  }
  if (any_case && r.byte(at + 1) == '\xC5' && r.byte(at + 2) == '\xBF') return at + 3;
  return at;
}

/// `\s+(?!\S)|\s+`: white space, without its last character if a word follows and more is left.
size_t white_space(const Reader& r, size_t at) {
  size_t end = at;
  size_t last = at;
  size_t length = 0;
  while ((r.at(end, length) & kSpace) != 0) {
    last = end;
    end += length;
  }
  return end < r.size() && last > at ? last : end;
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last newline of the white space, if there is one.
size_t lines_or_space(const Reader& r, size_t at) {
  size_t end = at;
  size_t last = at;
  size_t after_newline = at;
  size_t length = 0;
  while ((r.at(end, length) & kSpace) != 0) {
    last = end;
    end += length;
    if (is_newline(r.byte(last))) after_newline = end;
  }
  if (after_newline > at) return after_newline;
  return end < r.size() && last > at ? last : end;
}

size_t digits(const Reader& r, size_t at, int at_most) {
  size_t length = 0;
  while (at_most-- > 0 && (r.at(at, length) & kNumber) != 0) at += length;
  return at;
}

size_t gpt2(const Reader& r, size_t at) {
  const size_t short_form = contraction(r, at, false);
  if (short_form != at) return short_form;
  const size_t word = r.byte(at) == ' ' ? at + 1 : at;
  size_t length = 0;
  const unsigned found = r.at(word, length);
  if (length == 0) return white_space(r, at);
  if ((found & kLetter) != 0) return r.run(word, kLetter);
  if ((found & kNumber) != 0) return r.run(word, kNumber);
  if ((found & kSpace) == 0) return r.run_other(word, kSpace | kLetter | kNumber);
  return white_space(r, at);
}

/// Llama 3, Qwen2 and Qwen3.5: `word` are the classes of a word's characters.
template <unsigned word, int digits_at_most>
size_t modern(const Reader& r, size_t at) {
  const size_t short_form = contraction(r, at, true);
  if (short_form != at) return short_form;
  size_t length = 0;
  const unsigned found = r.at(at, length);
  if ((found & word) != 0) return r.run(at, word);
  if ((found & kNumber) != 0) return digits(r, at, digits_at_most);
  if (!is_newline(r.byte(at)) && r.is(at + length, word)) return r.run(at + length, word);
  constexpr unsigned kNotSign = kSpace | word | kNumber;
  const size_t sign = r.byte(at) == ' ' ? at + 1 : at;
  if (r.is_other(sign, kNotSign)) return r.newlines(r.run_other(sign, kNotSign));
  return lines_or_space(r, at);
}

/// One of o200k's two word patterns from `at`, after its optional first character; `at` itself if
/// it does not match. `needs_lower`: capitals, then at least one small letter; else at least one
/// capital, then small letters. Letters without case and marks are both.
size_t o200k_word(const Reader& r, size_t at, bool needs_lower) {
  const auto is_upper = [](unsigned c) {
    return (c & (kLetter | kMark)) != 0 && (c & kLower) == 0;
  };
  const auto is_lower = [](unsigned c) {
    return (c & (kLetter | kMark)) != 0 && (c & kUpper) == 0;
  };
  size_t capitals = at;
  size_t after_caseless = at;
  size_t length = 0;
  while (true) {
    const unsigned found = r.at(capitals, length);
    if (!is_upper(found)) break;
    capitals += length;
    if (is_lower(found)) after_caseless = capitals;
  }
  if (!needs_lower && capitals == at) return at;
  size_t end = capitals;
  while (is_lower(r.at(end, length))) end += length;
  // Without a small letter the pattern gives capitals back down to the last letter that is both.
  if (needs_lower && end == capitals) return after_caseless;
  return end;
}

/// o200k and Tekken.
template <bool contractions, int digits_at_most>
size_t by_case(const Reader& r, size_t at) {
  const auto ended = [&](size_t end) { return contractions ? contraction(r, end, true) : end; };
  size_t length = 0;
  const unsigned found = r.at(at, length);
  const bool may_lead = !is_newline(r.byte(at)) && (found & (kLetter | kNumber)) == 0;
  for (const bool needs_lower : {true, false}) {
    if (may_lead) {
      const size_t end = o200k_word(r, at + length, needs_lower);
      if (end != at + length) return ended(end);
    }
    const size_t end = o200k_word(r, at, needs_lower);
    if (end != at) return ended(end);
  }
  if ((found & kNumber) != 0) return digits(r, at, digits_at_most);
  constexpr unsigned kNotSign = kSpace | kLetter | kNumber;
  const size_t sign = r.byte(at) == ' ' ? at + 1 : at;
  if (r.is_other(sign, kNotSign)) {
    size_t end = r.run_other(sign, kNotSign);
    while (is_newline(r.byte(end)) || r.byte(end) == '/') ++end;
    return end;
  }
  return lines_or_space(r, at);
}

size_t cjk(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t length = 0;
    const uint32_t c = decode_valid(text.data() + at, length);
    if (!((c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF))) break;
    at += length;
  }
  return at;
}

size_t deepseek_text(const Reader& r, size_t at) {
  size_t length = 0;
  const unsigned found = r.at(at, length);
  constexpr unsigned kSign = kPunctuation | kSymbol;
  if (length == 1 && (found & kSign) != 0 && is_ascii_letter(r.byte(at + 1))) {
    size_t end = at + 1;
    while (is_ascii_letter(r.byte(end))) ++end;
    return end;
  }
  if ((found & kWordMark) != 0) return r.run(at, kWordMark);
  if (!is_newline(r.byte(at)) && (found & kSign) == 0 && r.is(at + length, kWordMark)) {
    return r.run(at + length, kWordMark);
  }
  const size_t sign = r.byte(at) == ' ' ? at + 1 : at;
  if (r.is(sign, kSign)) return r.newlines(r.run(sign, kSign));
  return lines_or_space(r, at);
}

}  // namespace

std::optional<Scanner> find_scanner(std::string_view pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.scanner;
  }
  return std::nullopt;
}

std::string_view scanner_pattern(Scanner scanner) {
  for (const Known& known : kKnown) {
    if (known.scanner == scanner) return known.pattern;
  }
  return {};
}

size_t scan(Scanner scanner, std::string_view text, size_t position) {
  const Reader r(text);
  switch (scanner) {
    case Scanner::kGpt2:
      return gpt2(r, position) - position;
    case Scanner::kLlama3:
      return modern<kWord, 3>(r, position) - position;
    case Scanner::kQwen2:
      return modern<kWord, 1>(r, position) - position;
    case Scanner::kQwen35:
      return modern<kWordMark, 1>(r, position) - position;
    case Scanner::kO200k:
      return by_case<true, 3>(r, position) - position;
    case Scanner::kTekken:
      return by_case<false, 1>(r, position) - position;
    case Scanner::kDigits3:
      return digits(r, position, 3) - position;
    case Scanner::kCjk:
      return cjk(text, position) - position;
    case Scanner::kDeepseekText:
      return deepseek_text(r, position) - position;
  }
  return 0;
}

}  // namespace tandem::text
