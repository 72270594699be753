#include "text/template/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>

#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 22;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Longer ones first.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  "<",  ">", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) {
      TANDEM_TRY(text_until_tag());
    }
    push(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] bool sees(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  [[nodiscard]] Error error(const std::string& message) const {
    return invalid(to_string(position_of(at_)) + ": " + message);
  }
  /// Positions are asked for in ascending order, but for errors.
  [[nodiscard]] Position position_of(size_t at) const {
    if (at < counted_) {
      counted_ = 0;
      counted_position_ = {};
    }
    for (; counted_ < at; ++counted_) {
      if (source_[counted_] == '\n') {
        ++counted_position_.line;
        counted_position_.column = 1;
      } else {
        ++counted_position_.column;
      }
    }
    return counted_position_;
  }
  void push(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, position_of(at_), std::move(text), 0, 0});
  }
  void skip_space() {
    while (at_ < source_.size() && is_space(source_[at_])) ++at_;
  }
  /// What stands after a tag: `-` takes all white space, and block tags one newline unless `+`.
  void after_tag(bool strip, bool trim) {
    if (strip) {
      skip_space();
    } else if (trim && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  Status text_until_tag() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos) break;
      if (tag + 1 < source_.size() &&
          std::string_view("{%#").find(source_[tag + 1]) != std::string_view::npos) {
        break;
      }
      ++tag;
    }
    if (tag == std::string::npos) {
      push(Token::Kind::kText, source_.substr(at_));
      at_ = source_.size();
      return {};
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string text = source_.substr(at_, tag - at_);
    if (sign == '-') {
      while (!text.empty() && is_space(text.back())) text.pop_back();
    } else if (sign != '+' && kind != '{') {
      const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      const bool blank =
          std::all_of(text.begin() + static_cast<ptrdiff_t>(line), text.end(), is_space);
      if (blank && (line > 0 || line_starting_)) text.resize(line);
    }
    if (!text.empty()) push(Token::Kind::kText, std::move(text));
    at_ = tag;
    if (kind == '#') return comment();
    const bool signed_tag = sign == '-' || sign == '+';
    if (kind == '%') return block(2 + (signed_tag ? 1U : 0U));
    push(Token::Kind::kVariableBegin, "{{");
    at_ += 2 + (signed_tag ? 1U : 0U);
    return tag_content("}}", Token::Kind::kVariableEnd);
  }

  Status comment() {
    const size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) return error("comment without an end");
    const char sign = end > at_ + 2 ? source_[end - 1] : '\0';
    at_ = end + 2;
    after_tag(sign == '-', sign != '+');
    return {};
  }

  Status block(size_t head) {
    const size_t start = at_;
    push(Token::Kind::kBlockBegin, "{%");
    at_ += head;
    const size_t inside = at_;
    skip_space();
    if (sees("raw") && (at_ + 3 >= source_.size() || !is_name_start(source_[at_ + 3]))) {
      at_ += 3;
      skip_space();
      if (sees("-%}") || sees("+%}") || sees("%}")) {
        tokens_.pop_back();
        return raw(start);
      }
    }
    at_ = inside;
    return tag_content("%}", Token::Kind::kBlockEnd);
  }

  Status raw(size_t start) {
    const char sign = source_[at_];
    at_ += sign == '%' ? 2 : 3;
    after_tag(sign == '-', false);  // Jinja leaves the newline here
    size_t tag = at_;
    while ((tag = source_.find("{%", tag)) != std::string::npos) {
      size_t at = tag + 2;
      const char begin_sign = at < source_.size() ? source_[at] : '\0';
      if (begin_sign == '-' || begin_sign == '+') ++at;
      while (at < source_.size() && is_space(source_[at])) ++at;
      if (!std::string_view(source_).substr(at).starts_with("endraw")) {
        tag += 2;
        continue;
      }
      at += 6;
      while (at < source_.size() && is_space(source_[at])) ++at;
      const std::string_view rest = std::string_view(source_).substr(at);
      const size_t length = rest.starts_with("%}")                               ? 2
                            : rest.starts_with("-%}") || rest.starts_with("+%}") ? 3
                                                                                 : 0;
      if (length == 0) {
        tag += 2;
        continue;
      }
      std::string text = source_.substr(at_, tag - at_);
      if (begin_sign == '-') {
        while (!text.empty() && is_space(text.back())) text.pop_back();
      } else if (begin_sign != '+') {
        const size_t line = text.rfind('\n') + 1;
        if (line > 0 &&
            std::all_of(text.begin() + static_cast<ptrdiff_t>(line), text.end(), is_space)) {
          text.resize(line);
        }
      }
      if (!text.empty()) push(Token::Kind::kText, std::move(text));
      at_ = at + length;
      after_tag(rest[0] == '-', rest[0] != '+');
      return {};
    }
    at_ = start;
    return error("raw block without an end");
  }

  Status tag_content(std::string_view close, Token::Kind close_kind) {
    int braces = 0;
    while (true) {
      skip_space();
      if (at_ >= source_.size()) return error("tag without an end");
      const bool signed_close = (source_[at_] == '-' || source_[at_] == '+') &&
                                std::string_view(source_).substr(at_ + 1).starts_with(close);
      // A dict's closing braces are not the end of the tag.
      if (signed_close || (sees(close) && (close == "%}" || braces == 0))) {
        const char sign = source_[at_];
        push(close_kind, std::string(close));
        at_ += close.size() + (signed_close ? 1 : 0);
        after_tag(signed_close && sign == '-', close == "%}" && !(signed_close && sign == '+'));
        return {};
      }
      TANDEM_TRY(token());
      if (tokens_.back().kind != Token::Kind::kOperator) continue;
      if (tokens_.back().text == "{") ++braces;
      if (tokens_.back().text == "}") --braces;
    }
  }

  Status token() {
    const char c = source_[at_];
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
      push(Token::Kind::kName, source_.substr(at_, end - at_));
      at_ = end;
      return {};
    }
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return string();
    for (const std::string_view op : kOperators) {
      if (!sees(op)) continue;
      push(Token::Kind::kOperator, std::string(op));
      at_ += op.size();
      return {};
    }
    size_t length = decode_utf8(std::string_view(source_).substr(at_)).length;
    return error("unexpected character \"" + source_.substr(at_, length) + "\"");
  }

  Status number() {
    std::string digits;
    size_t end = at_;
    const auto take_digits = [&] {
      while (end < source_.size() &&
             (is_digit(source_[end]) ||
              (source_[end] == '_' && end + 1 < source_.size() && is_digit(source_[end + 1])))) {
        if (source_[end] != '_') digits += source_[end];
        ++end;
      }
    };
    take_digits();
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      is_float = true;
      digits += '.';
      ++end;
      take_digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      const bool has_sign =
          exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-');
      if (has_sign) ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        is_float = true;
        digits += 'e';
        if (has_sign) digits += source_[exponent - 1];
        end = exponent;
        take_digits();
      }
    }
    push(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, digits);
    Token& token = tokens_.back();
    const char* first = digits.data();
    const char* last = first + digits.size();
    const auto result = is_float ? std::from_chars(first, last, token.number)
                                 : std::from_chars(first, last, token.integer);
    if (result.ec != std::errc() || result.ptr != last) {
      return error("number " + digits.substr(0, 60) + " is out of range");
    }
    at_ = end;
    return {};
  }

  Status string() {
    const char quote = source_[at_];
    std::string value;
    size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\' || at + 1 >= source_.size()) {
        value += source_[at++];
        continue;
      }
      ++at;
      if (!escape(at, value)) return error("string with a malformed escape");
    }
    if (at >= source_.size()) return error("string without an end");
    push(Token::Kind::kString, std::move(value));
    at_ = at + 1;
    return {};
  }

  /// The escape whose letter is at `at`, as in a Python string.
  bool escape(size_t& at, std::string& value) const {
    const char c = source_[at++];
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const size_t letter = kLetters.find(c);
    if (letter != std::string_view::npos) {
      value += kValues[letter];
      return true;
    }
    if (c == '\n') return true;
    if (c >= '0' && c <= '7') {
      uint32_t code = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && at < source_.size() && source_[at] >= '0' && source_[at] <= '7';
           ++i) {
        code = code * 8 + static_cast<uint32_t>(source_[at++] - '0');
      }
      append_utf8(value, code);
      return true;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      value += '\\';
      value += c;
      return true;
    }
    if (source_.size() - at < digits) return false;
    uint32_t code = 0;
    const char* first = source_.data() + at;
    const auto result = std::from_chars(first, first + digits, code, 16);
    if (result.ec != std::errc() || result.ptr != first + digits) return false;
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    at += digits;
    append_utf8(value, code);
    return true;
  }

  std::string source_;
  size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
  mutable size_t counted_ = 0;
  mutable Position counted_position_;
};

}  // namespace

std::string to_string(Position position) {
  return "line " + std::to_string(position.line) + ", column " + std::to_string(position.column);
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) return invalid("template larger than 4 MiB");
  if (!is_valid_utf8(source)) return invalid("template that is not UTF-8");
  std::string lines;
  lines.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      lines += source[i];
    } else {
      lines += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!lines.empty() && lines.back() == '\n') lines.pop_back();
  return Lexer(std::move(lines)).run();
}

}  // namespace tandem::text::jinja
