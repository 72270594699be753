#include "text/pre_tokenizer.h"

#include "text/byte_level.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

using Type = PreTokenizer::Type;

/// Takes the matches in one piece, from left to right, and writes the pieces that a behavior makes
/// of them.
class Splitter {
 public:
  Splitter(SplitBehavior behavior, bool invert, std::vector<Piece>& out)
      : behavior_(behavior), invert_(invert), out_(out) {}

  void begin(Piece piece) {
    piece_ = piece;
    done_ = piece.begin;
    open_ = false;
    last_was_match_ = false;
  }
  void match(uint32_t begin, uint32_t end) {
    if (done_ != begin) part(done_, begin, invert_);
    part(begin, end, !invert_);
    done_ = end;
  }
  void end() {
    if (done_ != piece_.end) part(done_, piece_.end, invert_);
    if (open_) emit(pending_);
  }

 private:
  void emit(Piece piece) {
    if (piece.begin < piece.end) out_.push_back(piece);
  }
  /// A stretch that matches or does not.
  void part(uint32_t begin, uint32_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (!is_match) emit({begin, end});
        return;
      case SplitBehavior::kIsolated:
        emit({begin, end});
        return;
      case SplitBehavior::kContiguous:
        join(begin, end, is_match == last_was_match_ && open_);
        break;
      case SplitBehavior::kMergedWithPrevious:
        join(begin, end, is_match && !last_was_match_ && open_);
        break;
      case SplitBehavior::kMergedWithNext:
        // A match opens a piece that the stretch after it joins.
        join(begin, end, !is_match && last_was_match_ && open_);
        break;
    }
    last_was_match_ = is_match;
  }
  void join(uint32_t begin, uint32_t end, bool to_last) {
    if (to_last) {
      pending_.end = end;
      return;
    }
    if (open_) emit(pending_);
    pending_ = {begin, end};
    open_ = true;
  }

  SplitBehavior behavior_;
  bool invert_;
  std::vector<Piece>& out_;
  Piece piece_{0, 0};
  Piece pending_{0, 0};
  uint32_t done_ = 0;
  bool open_ = false;
  bool last_was_match_ = false;
};

/// Calls `match` for every character of a piece of which `test` is true.
template <typename Test>
void split_characters(const std::string& text, std::vector<Piece>& pieces, SplitBehavior behavior,
                      const Test& test) {
  std::vector<Piece> out;
  Splitter splitter(behavior, false, out);
  for (const Piece piece : pieces) {
    splitter.begin(piece);
    size_t length = 0;
    for (uint32_t at = piece.begin; at < piece.end; at += static_cast<uint32_t>(length)) {
      if (test(decode_valid(text.data() + at, length))) {
        splitter.match(at, at + static_cast<uint32_t>(length));
      }
    }
    splitter.end();
  }
  pieces = std::move(out);
}

/// Rust's `\w+|[^\w\s]+`.
void split_words(const std::string& text, std::vector<Piece>& pieces) {
  const CharClasses& classes = CharClasses::get();
  std::vector<Piece> out;
  for (const Piece piece : pieces) {
    int last = 0;  // 0 space, 1 word, 2 other
    size_t length = 0;
    for (uint32_t at = piece.begin; at < piece.end; at += static_cast<uint32_t>(length)) {
      const uint32_t c = decode_valid(text.data() + at, length);
      const int now = is_word(c) ? 1 : (classes.of(c) & kSpace) != 0 ? 0 : 2;
      const auto end = at + static_cast<uint32_t>(length);
      if (now != 0 && now == last) {
        out.back().end = end;
      } else if (now != 0) {
        out.push_back({at, end});
      }
      last = now;
    }
  }
  pieces = std::move(out);
}

void split_fixed(const std::string& text, std::vector<Piece>& pieces, uint32_t characters) {
  std::vector<Piece> out;
  for (const Piece piece : pieces) {
    uint32_t begin = piece.begin;
    uint32_t count = 0;
    size_t length = 0;
    for (uint32_t at = piece.begin; at < piece.end;) {
      decode_valid(text.data() + at, length);
      at += static_cast<uint32_t>(length);
      if (++count == characters || at == piece.end) {
        out.push_back({begin, at});
        begin = at;
        count = 0;
      }
    }
  }
  pieces = std::move(out);
}

/// Rewrites every piece; `rewrite` appends the piece's new text.
template <typename Rewrite>
void rewrite_pieces(std::string& text, std::vector<Piece>& pieces, const Rewrite& rewrite) {
  std::string out;
  out.reserve(text.size() + pieces.size());
  for (Piece& piece : pieces) {
    const auto begin = static_cast<uint32_t>(out.size());
    rewrite(out, std::string_view(text).substr(piece.begin, piece.end - piece.begin), piece.begin);
    piece = {begin, static_cast<uint32_t>(out.size())};
  }
  text = std::move(out);
}

void metaspace(const PreTokenizer& part, bool at_start, std::string& text,
               std::vector<Piece>& pieces) {
  rewrite_pieces(
      text, pieces, [&](std::string& out, std::string_view piece, uint32_t original_begin) {
        const bool has_it = piece.starts_with(' ') || piece.starts_with(part.replacement);
        if (!has_it &&
            (part.prepend == PrependScheme::kAlways ||
             (part.prepend == PrependScheme::kFirst && at_start && original_begin == 0))) {
          out += part.replacement;
        }
        for (const char c : piece) {
          if (c == ' ') {
            out += part.replacement;
          } else {
            out += c;
          }
        }
      });
  if (!part.split) return;
  const uint32_t wanted = decode_utf8(part.replacement).code_point;
  split_characters(text, pieces, SplitBehavior::kMergedWithNext,
                   [wanted](uint32_t c) { return c == wanted; });
}

}  // namespace

Result<PreTokenizerChain> PreTokenizerChain::build(const std::vector<PreTokenizer>& parts,
                                                   bool use_own_scanners) {
  PreTokenizerChain chain;
  size_t byte_levels = 0;
  for (const PreTokenizer& part : parts) {
    Step step{part, std::nullopt, std::nullopt};
    std::string_view pattern;
    if (part.type == Type::kByteLevel) {
      ++byte_levels;
      if (part.use_regex) pattern = scanner_pattern(Scanner::kGpt2);
    } else if (part.type == Type::kSplit && part.pattern.is_regex) {
      pattern = part.pattern.text;
    }
    if (!pattern.empty()) {
      if (use_own_scanners) step.scanner = find_scanner(pattern);
      if (!step.scanner.has_value()) {
        TANDEM_ASSIGN(step.regex, Regex::compile(pattern));
      }
    }
    chain.steps_.push_back(std::move(step));
  }
  chain.raw_bytes_ = byte_levels == 1 && parts.back().type == Type::kByteLevel;
  return chain;
}

Status PreTokenizerChain::split_pattern(const Step& step, const std::string& text,
                                        std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  out.reserve(text.size() / 4);
  const bool byte_level = step.part.type == Type::kByteLevel;
  Splitter splitter(byte_level ? SplitBehavior::kIsolated : step.part.behavior,
                    !byte_level && step.part.invert, out);
  for (const Piece piece : pieces) {
    const std::string_view part =
        std::string_view(text).substr(piece.begin, piece.end - piece.begin);
    splitter.begin(piece);
    if (step.scanner.has_value()) {
      size_t length = 0;
      for (size_t at = 0; at < part.size();) {
        const size_t matched = scan(*step.scanner, part, at);
        if (matched == 0) {
          decode_valid(part.data() + at, length);
          at += length;
          continue;
        }
        splitter.match(piece.begin + static_cast<uint32_t>(at),
                       piece.begin + static_cast<uint32_t>(at + matched));
        at += matched;
      }
    } else if (step.regex.has_value()) {
      Regex::Matches matches(*step.regex, part);
      size_t begin = 0;
      size_t end = 0;
      while (true) {
        TANDEM_ASSIGN(const bool found, matches.next(begin, end));
        if (!found) break;
        splitter.match(piece.begin + static_cast<uint32_t>(begin),
                       piece.begin + static_cast<uint32_t>(end));
      }
    } else if (const std::string& wanted = step.part.pattern.text; !wanted.empty()) {
      for (size_t at = part.find(wanted); at != std::string_view::npos;
           at = part.find(wanted, at + wanted.size())) {
        splitter.match(piece.begin + static_cast<uint32_t>(at),
                       piece.begin + static_cast<uint32_t>(at + wanted.size()));
      }
    }
    splitter.end();
  }
  pieces = std::move(out);
  return {};
}

Status PreTokenizerChain::run(const Step& step, bool at_start, bool keep_bytes, std::string& text,
                              std::vector<Piece>& pieces) {
  const PreTokenizer& part = step.part;
  const CharClasses& classes = CharClasses::get();
  switch (part.type) {
    case Type::kByteLevel:
      if (part.add_prefix_space) {
        rewrite_pieces(text, pieces, [](std::string& out, std::string_view piece, uint32_t) {
          if (!piece.starts_with(' ')) out += ' ';
          out += piece;
        });
      }
      if (part.use_regex) TANDEM_TRY(split_pattern(step, text, pieces));
      if (!keep_bytes) {
        rewrite_pieces(text, pieces, [](std::string& out, std::string_view piece, uint32_t) {
          out += map_bytes(piece);
        });
      }
      return {};
    case Type::kSplit:
      return split_pattern(step, text, pieces);
    case Type::kDigits:
      split_characters(
          text, pieces,
          part.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
          [&classes](uint32_t c) { return (classes.of(c) & kNumber) != 0; });
      return {};
    case Type::kMetaspace:
      metaspace(part, at_start, text, pieces);
      return {};
    case Type::kPunctuation:
      split_characters(text, pieces, part.behavior, [&classes](uint32_t c) {
        const unsigned found = classes.of(c);
        return (found & kPunctuation) != 0 || (c < 0x80 && (found & kSymbol) != 0);
      });
      return {};
    case Type::kWhitespace:
      split_words(text, pieces);
      return {};
    case Type::kWhitespaceSplit:
      split_characters(text, pieces, SplitBehavior::kRemoved,
                       [&classes](uint32_t c) { return (classes.of(c) & kSpace) != 0; });
      return {};
    case Type::kFixedLength:
      split_fixed(text, pieces, part.length);
      return {};
  }
  return {};
}

Status PreTokenizerChain::split(std::string& text, bool at_start,
                                std::vector<Piece>& pieces) const {
  pieces.clear();
  if (text.empty()) return {};
  pieces.push_back({0, static_cast<uint32_t>(text.size())});
  for (const Step& step : steps_) {
    TANDEM_TRY(run(step, at_start, raw_bytes_, text, pieces));
    if (text.size() > (size_t{1} << 31)) return invalid("text grew past 2 GiB");
  }
  return {};
}

}  // namespace tandem::text
