// A tokenizer's pre-tokenizers: cut a text into the pieces that are encoded by themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/regex.h"
#include "text/scanner.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

/// Bytes [begin, end) of a text. Text is at most 1 GiB, so 32 bits are enough.
struct Piece {
  uint32_t begin;
  uint32_t end;
};

/// Immutable and thread-safe.
class PreTokenizerChain {
 public:
  /// `use_own_scanners`: false runs every pattern in PCRE2, which tests compare with.
  static Result<PreTokenizerChain> build(const std::vector<PreTokenizer>& parts,
                                         bool use_own_scanners = true);

  /// True if the pieces are raw bytes for a byte-level model, not yet in the alphabet of
  /// byte_level.h: so it is where the only ByteLevel step comes last.
  [[nodiscard]] bool raw_bytes() const { return raw_bytes_; }
  /// Cuts `text` (valid UTF-8), which may be rewritten (a prefixed space, bytes to alphabet).
  /// `at_start`: the text is at the beginning of the whole input. No piece is empty.
  Status split(std::string& text, bool at_start, std::vector<Piece>& pieces) const;

 private:
  struct Step {
    PreTokenizer part;
    std::optional<Regex> regex;
    std::optional<Scanner> scanner;
  };
  static Status split_pattern(const Step& step, const std::string& text,
                              std::vector<Piece>& pieces);
  static Status run(const Step& step, bool at_start, bool keep_bytes, std::string& text,
                    std::vector<Piece>& pieces);
  std::vector<Step> steps_;
  bool raw_bytes_ = false;
};

}  // namespace tandem::text
