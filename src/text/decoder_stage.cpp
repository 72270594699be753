#include "text/decoder_stage.h"

#include <algorithm>
#include <vector>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

/// The end of the chain.
class Collector : public DecoderStage {
 public:
  void part(std::string_view text) override { text_ += text; }
  void end_token() override {}
  void finish() override {}
  std::string take() override { return std::exchange(text_, {}); }

 private:
  std::string text_;
};

/// A step that needs whole tokens.
class WholeTokens : public DecoderStage {
 public:
  void part(std::string_view text) override { token_ += text; }
  void end_token() override { whole(std::exchange(token_, {})); }

 protected:
  virtual void whole(std::string token) = 0;

 private:
  std::string token_;
};

/// All tokens become one.
class Fuse : public DecoderStage {
 public:
  void part(std::string_view text) override { next().part(text); }
  void end_token() override { any_ = true; }
  void finish() override {
    if (any_) next().end_token();
    any_ = false;
    DecoderStage::finish();
  }

 private:
  bool any_ = false;
};

/// Tokens' spellings to bytes, and the bytes to one text.
class ByteLevel : public WholeTokens {
 public:
  void finish() override {
    if (!bytes_.empty()) next().part(to_valid_utf8(bytes_));
    bytes_.clear();
    if (any_) next().end_token();
    any_ = false;
    DecoderStage::finish();
  }

 protected:
  void whole(std::string token) override {
    any_ = true;
    std::string bytes;
    bytes_ += unmap_bytes(token, bytes) ? bytes : token;
    const size_t certain = complete_utf8_prefix(bytes_);
    if (certain == 0) return;
    next().part(to_valid_utf8(std::string_view(bytes_).substr(0, certain)));
    bytes_.erase(0, certain);
  }

 private:
  std::string bytes_;
  bool any_ = false;
};

/// Byte tokens in a row become their characters if all of them are UTF-8, else one U+FFFD each.
/// So the row has to end before any of it is certain.
class ByteFallback : public WholeTokens {
 public:
  void finish() override {
    end_row();
    DecoderStage::finish();
  }

 protected:
  void whole(std::string token) override {
    const int byte = byte_of(token);
    if (byte >= 0) {
      bytes_.push_back(static_cast<char>(byte));
      return;
    }
    end_row();
    pass(token);
  }

 private:
  static int byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) return -1;
      value = value * 16 + digit;
    }
    return value;
  }
  void end_row() {
    if (bytes_.empty()) return;
    if (is_valid_utf8(bytes_)) {
      pass(bytes_);
    } else {
      for (size_t i = 0; i < bytes_.size(); ++i) pass(kReplacementUtf8);
    }
    bytes_.clear();
  }
  std::string bytes_;
};

/// Replaces a string. What may be the beginning of it at the end of a part waits.
class ReplaceString : public DecoderStage {
 public:
  ReplaceString(std::string wanted, std::string content)
      : wanted_(std::move(wanted)), content_(std::move(content)) {}

  void part(std::string_view text) override {
    if (wanted_.empty()) {
      next().part(text);
      return;
    }
    held_ += text;
    std::string out;
    size_t done = 0;
    for (size_t at = held_.find(wanted_); at != std::string::npos; at = held_.find(wanted_, done)) {
      out.append(held_, done, at - done);
      out += content_;
      done = at + wanted_.size();
    }
    size_t keep = std::min(held_.size() - done, wanted_.size() - 1);
    while (keep > 0 && !wanted_.starts_with(std::string_view(held_).substr(held_.size() - keep))) {
      --keep;
    }
    out.append(held_, done, held_.size() - keep - done);
    held_.erase(0, held_.size() - keep);
    if (!out.empty()) next().part(out);
  }
  void end_token() override {
    if (!held_.empty()) next().part(std::exchange(held_, {}));
    next().end_token();
  }

 private:
  std::string wanted_;
  std::string content_;
  std::string held_;
};

class ReplaceRegex : public WholeTokens {
 public:
  ReplaceRegex(Regex regex, std::string content)
      : regex_(std::move(regex)), content_(std::move(content)) {}

 protected:
  void whole(std::string token) override {
    Regex::Matches matches(regex_, token);
    std::string out;
    size_t done = 0;
    size_t begin = 0;
    size_t end = 0;
    while (true) {
      const Result<bool> found = matches.next(begin, end);
      // A pattern that gives up leaves the rest of the token as it is.
      if (!found.ok() || !*found) break;
      out.append(token, done, begin - done);
      out += content_;
      done = end;
    }
    out.append(token, done);
    pass(out);
  }

 private:
  Regex regex_;
  std::string content_;
};

/// Strips at most so many of one character from each token's ends.
class Strip : public DecoderStage {
 public:
  Strip(std::string content, uint32_t start, uint32_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void part(std::string_view text) override {
    while (cut_ < start_ && at_start_ && text.starts_with(content_)) {
      text.remove_prefix(content_.size());
      ++cut_;
    }
    if (!text.empty()) at_start_ = false;
    if (stop_ == 0) {
      if (!text.empty()) next().part(text);
      return;
    }
    held_ += text;
    // Only the last `stop_` of a run at the end may have to go.
    size_t keep = 0;
    for (uint32_t i = 0; i < stop_; ++i) {
      if (!std::string_view(held_).substr(0, held_.size() - keep).ends_with(content_)) break;
      keep += content_.size();
    }
    if (keep == held_.size()) return;
    next().part(std::string_view(held_).substr(0, held_.size() - keep));
    held_.erase(0, held_.size() - keep);
  }
  void end_token() override {
    held_.clear();
    at_start_ = true;
    cut_ = 0;
    next().end_token();
  }

 private:
  std::string content_;
  uint32_t start_;
  uint32_t stop_;
  uint32_t cut_ = 0;
  bool at_start_ = true;
  std::string held_;
};

/// The replacement character is a space, or nothing in the first token.
class Metaspace : public WholeTokens {
 public:
  Metaspace(std::string replacement, bool drop_in_first)
      : replacement_(std::move(replacement)), drop_in_first_(drop_in_first) {}
  void finish() override {
    first_ = true;
    DecoderStage::finish();
  }

 protected:
  void whole(std::string token) override {
    std::string out;
    size_t done = 0;
    for (size_t at = token.find(replacement_); at != std::string::npos;
         at = token.find(replacement_, done)) {
      out.append(token, done, at - done);
      if (!first_ || !drop_in_first_) out += ' ';
      done = at + replacement_.size();
    }
    out.append(token, done);
    first_ = false;
    pass(out);
  }

 private:
  std::string replacement_;
  bool drop_in_first_;
  bool first_ = true;
};

/// The end-of-word suffix is a space, or nothing in the last token, which is known at the end.
class BpeSuffix : public WholeTokens {
 public:
  explicit BpeSuffix(std::string suffix) : suffix_(std::move(suffix)) {}
  void finish() override {
    if (any_) emit("");
    any_ = false;
    DecoderStage::finish();
  }

 protected:
  void whole(std::string token) override {
    if (any_) emit(" ");
    any_ = true;
    held_ = std::move(token);
  }

 private:
  void emit(std::string_view replacement) {
    std::string out;
    size_t done = 0;
    if (!suffix_.empty()) {
      for (size_t at = held_.find(suffix_); at != std::string::npos;
           at = held_.find(suffix_, done)) {
        out.append(held_, done, at - done);
        out += replacement;
        done = at + suffix_.size();
      }
    }
    out.append(held_, done);
    pass(out);
  }
  std::string suffix_;
  std::string held_;
  bool any_ = false;
};

class JoinWithSpace : public WholeTokens {
 public:
  void finish() override {
    first_ = true;
    DecoderStage::finish();
  }

 protected:
  void whole(std::string token) override {
    if (!first_) next().part(" ");
    first_ = false;
    pass(token);
  }

 private:
  bool first_ = true;
};

std::unique_ptr<DecoderStage> make_stage(const Decoder& decoder, const std::vector<Regex>& patterns,
                                         size_t& next_pattern) {
  switch (decoder.type) {
    case Decoder::Type::kByteLevel:
      return std::make_unique<ByteLevel>();
    case Decoder::Type::kByteFallback:
      return std::make_unique<ByteFallback>();
    case Decoder::Type::kFuse:
      return std::make_unique<Fuse>();
    case Decoder::Type::kReplace:
      if (decoder.pattern.is_regex) {
        return std::make_unique<ReplaceRegex>(patterns[next_pattern++], decoder.content);
      }
      return std::make_unique<ReplaceString>(decoder.pattern.text, decoder.content);
    case Decoder::Type::kStrip:
      return std::make_unique<Strip>(decoder.content, decoder.start, decoder.stop);
    case Decoder::Type::kMetaspace:
      return std::make_unique<Metaspace>(decoder.content, decoder.prepend != PrependScheme::kNever);
    case Decoder::Type::kBpe:
      return std::make_unique<BpeSuffix>(decoder.content);
    case Decoder::Type::kJoinWithSpace:
      return std::make_unique<JoinWithSpace>();
  }
  return std::make_unique<Fuse>();
}

}  // namespace

std::unique_ptr<DecoderStage> build_decoder(const TokenizerImpl& impl) {
  std::vector<std::unique_ptr<DecoderStage>> stages;
  size_t next_pattern = 0;
  for (const Decoder& decoder : impl.spec().decoders) {
    stages.push_back(make_stage(decoder, impl.decoder_patterns(), next_pattern));
  }
  std::unique_ptr<DecoderStage> first = std::make_unique<Collector>();
  while (!stages.empty()) {
    stages.back()->connect(std::move(first));
    first = std::move(stages.back());
    stages.pop_back();
  }
  return first;
}

}  // namespace tandem::text
