// Token ids to text as they come, one at a time.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace tandem::text {

class DecoderStage;

/// Turns a stream of token ids into pieces of text. The pieces put together equal
/// Tokenizer::decode of all ids, and each piece is whole characters: bytes wait inside until
/// nothing that follows can change them. Not thread-safe; one for each answer.
class Detokenizer {
 public:
  /// `show_special`: write special tokens out as they are spelled instead of leaving them out.
  explicit Detokenizer(const Tokenizer& tokenizer, bool show_special = false);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;
  Detokenizer(const Detokenizer&) = delete;
  Detokenizer& operator=(const Detokenizer&) = delete;

  /// Adds a token and returns the text that became certain, often empty.
  std::string push(TokenId id);
  /// The rest of the text; call it once, at the end. Then the next push() begins a new text.
  std::string flush();

 private:
  Tokenizer tokenizer_;
  bool show_special_;
  std::unique_ptr<DecoderStage> first_;
};

}  // namespace tandem::text
