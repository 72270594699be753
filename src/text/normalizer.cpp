#include "text/normalizer.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

char any_mark(const std::string& marks, size_t begin, size_t end) {
  return std::find(marks.begin() + static_cast<ptrdiff_t>(begin),
                   marks.begin() + static_cast<ptrdiff_t>(end),
                   '\1') != marks.begin() + static_cast<ptrdiff_t>(end)
             ? '\1'
             : '\0';
}

void apply_form(std::string& text, std::string* marks, NormalForm form) {
  if (is_normalized(text, form)) return;
  const bool mixed = marks != nullptr && !marks->empty() &&
                     marks->find(static_cast<char>(1 - (*marks)[0])) != std::string::npos;
  if (!mixed) {
    text = normalize(text, form);
    if (marks != nullptr) marks->assign(text.size(), marks->empty() ? '\0' : (*marks)[0]);
    return;
  }
  // No form joins an ASCII character to what is before it, so the text can be cut before each.
  std::string out;
  std::string out_marks;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = begin + 1;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    out += normalize(std::string_view(text).substr(begin, end - begin), form);
    out_marks.resize(out.size(), any_mark(*marks, begin, end));
    begin = end;
  }
  text = std::move(out);
  *marks = std::move(out_marks);
}

/// Rebuilds the text character by character.
template <typename Map>
void map_characters(std::string& text, std::string* marks, const Map& map) {
  std::string out;
  std::string out_marks;
  out.reserve(text.size());
  size_t length = 0;
  for (size_t at = 0; at < text.size(); at += length) {
    map(out, decode_valid(text.data() + at, length));
    if (marks != nullptr) out_marks.resize(out.size(), (*marks)[at]);
  }
  text = std::move(out);
  if (marks != nullptr) *marks = std::move(out_marks);
}

void strip(std::string& text, std::string* marks, bool left, bool right) {
  const CharClasses& classes = CharClasses::get();
  size_t begin = 0;
  size_t end = text.size();
  size_t length = 0;
  while (left && begin < end) {
    if ((classes.of(decode_valid(text.data() + begin, length)) & kSpace) == 0) break;
    begin += length;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if ((classes.of(decode_valid(text.data() + last, length)) & kSpace) == 0) break;
    end = last;
  }
  text = text.substr(begin, end - begin);
  if (marks != nullptr) *marks = marks->substr(begin, end - begin);
}

/// Copies the text with its matches replaced; `next` finds them from left to right.
class Replacer {
 public:
  Replacer(std::string& text, std::string* marks, const std::string& content)
      : text_(text), marks_(marks), content_(content) {}

  Status match(size_t begin, size_t end) {
    copy_until(begin);
    out_ += content_;
    // The replacement is the tokenizer's own text, but what asked for it was the match's.
    if (marks_ != nullptr) out_marks_.resize(out_.size(), any_mark(*marks_, begin, end));
    done_ = end;
    if (out_.size() > kMaxNormalizedBytes) return invalid("normalized text is larger than 1 GiB");
    return {};
  }
  void finish() {
    copy_until(text_.size());
    text_ = std::move(out_);
    if (marks_ != nullptr) *marks_ = std::move(out_marks_);
  }

 private:
  void copy_until(size_t end) {
    out_.append(text_, done_, end - done_);
    if (marks_ != nullptr) out_marks_.append(*marks_, done_, end - done_);
    done_ = end;
  }
  std::string& text_;
  std::string* marks_;
  const std::string& content_;
  std::string out_;
  std::string out_marks_;
  size_t done_ = 0;
};

Status replace(std::string& text, std::string* marks, const Normalizer& part,
               const std::optional<Regex>& regex) {
  Replacer replacer(text, marks, part.content);
  if (regex.has_value()) {
    Regex::Matches matches(*regex, text);
    size_t begin = 0;
    size_t end = 0;
    while (true) {
      TANDEM_ASSIGN(const bool found, matches.next(begin, end));
      if (!found) break;
      TANDEM_TRY(replacer.match(begin, end));
    }
  } else if (!part.pattern.text.empty()) {
    const std::string& wanted = part.pattern.text;
    size_t at = text.find(wanted);
    if (at == std::string::npos) return {};
    for (; at != std::string::npos; at = text.find(wanted, at + wanted.size())) {
      TANDEM_TRY(replacer.match(at, at + wanted.size()));
    }
  }
  replacer.finish();
  return {};
}

}  // namespace

Result<NormalizerChain> NormalizerChain::build(const std::vector<Normalizer>& parts) {
  NormalizerChain chain;
  for (const Normalizer& part : parts) {
    Step step{part, std::nullopt};
    if (part.type == Normalizer::Type::kReplace && part.pattern.is_regex) {
      TANDEM_ASSIGN(step.regex, Regex::compile(part.pattern.text));
    }
    chain.steps_.push_back(std::move(step));
  }
  return chain;
}

Status NormalizerChain::apply(std::string& text, std::string* marks) const {
  for (const Step& step : steps_) {
    if (text.size() > kMaxNormalizedBytes) return invalid("normalized text is larger than 1 GiB");
    switch (step.part.type) {
      case Normalizer::Type::kForm:
        if (text.size() > kMaxNormalizedBytes / 4) {
          return invalid("text to normalize is larger than 256 MiB");
        }
        apply_form(text, marks, step.part.form);
        break;
      case Normalizer::Type::kLowercase:
        map_characters(text, marks, append_lower);
        break;
      case Normalizer::Type::kPrepend:
        if (text.empty()) break;
        text.insert(0, step.part.content);
        if (marks != nullptr) marks->insert(0, step.part.content.size(), '\0');
        break;
      case Normalizer::Type::kReplace:
        TANDEM_TRY(replace(text, marks, step.part, step.regex));
        break;
      case Normalizer::Type::kStrip:
        strip(text, marks, step.part.left, step.part.right);
        break;
      case Normalizer::Type::kStripAccents:
        map_characters(text, marks, [](std::string& out, uint32_t c) {
          if (!is_nonspacing_mark(c)) append_utf8(out, c);
        });
        break;
      case Normalizer::Type::kByteLevel:
        text = map_bytes(text, marks);
        break;
    }
  }
  return {};
}

}  // namespace tandem::text
