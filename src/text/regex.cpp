// The only file that includes PCRE2.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "text/unicode.h"

namespace tandem::text {

namespace {

// A tokenizer's pattern takes a few steps a character. The limits stop patterns that are
// exponential on hostile text within about a second.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kDepthLimit = 100'000;
constexpr size_t kMaxPatternBytes = size_t{1} << 16;
constexpr size_t kJitStackStart = size_t{1} << 15;
constexpr size_t kJitStackMax = size_t{1} << 23;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
};

struct Regex::Matches::State {
  std::shared_ptr<const Code> code;
  std::string_view text;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  size_t from = 0;
  size_t last_end = std::string_view::npos;
};

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) return invalid("a pattern longer than 65536 bytes");
  if (!is_valid_utf8(pattern)) return invalid("a pattern that is not UTF-8");
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Oniguruma's Ruby syntax, in which these patterns are written, has ^ and $ match at lines.
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    return invalid("pattern \"" + std::string(pattern.substr(0, 200)) + "\" at byte " +
                   std::to_string(offset) + ": " + message_of(error));
  }
  // Without JIT (a machine or policy that forbids it) the interpreter gives the same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  Regex regex;
  regex.code_ = std::make_shared<const Code>(code);
  return regex;
}

Regex::Matches::Matches(const Regex& regex, std::string_view text)
    : state_(std::make_unique<State>()) {
  state_->code = regex.code_;
  state_->text = text;
  state_->data = pcre2_match_data_create_from_pattern(state_->code->code, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  state_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  if (state_->context == nullptr) return;
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_depth_limit(state_->context, kDepthLimit);
  pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

Regex::Matches::~Matches() {
  pcre2_jit_stack_free(state_->stack);
  pcre2_match_context_free(state_->context);
  pcre2_match_data_free(state_->data);
}

Result<bool> Regex::Matches::next(size_t& begin, size_t& end) {
  State& s = *state_;
  if (s.data == nullptr || s.context == nullptr) {
    return Error{ErrorKind::kMemory, "no memory for a pattern's match"};
  }
  while (s.from <= s.text.size()) {
    const int count = pcre2_match(s.code->code, reinterpret_cast<PCRE2_SPTR>(s.text.data()),
                                  s.text.size(), s.from, PCRE2_NO_UTF_CHECK, s.data, s.context);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) return invalid("a pattern gave up on the text: " + message_of(count));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(s.data);
    begin = ends[0];
    end = ends[1];
    // \K inside a lookaround could place the begin behind the end or before the last match.
    if (begin > end || begin < s.from) return unsupported("a pattern that matches backwards");
    s.from = end;
    if (begin == end) {
      const bool again = begin == s.last_end;
      if (again) {
        if (begin == s.text.size()) break;
        s.from += decode_utf8(s.text.substr(begin)).length;
        continue;
      }
    }
    s.last_end = end;
    return true;
  }
  s.from = s.text.size() + 1;
  return false;
}

}  // namespace tandem::text
