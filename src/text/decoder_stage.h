// The steps from tokens' spellings to text, each working on a stream.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer_impl.h"

namespace tandem::text {

/// One step. What flows is a sequence of tokens, each in one or more parts of whole characters
/// (a step that fuses everything into one token passes it on in parts, as they become certain).
class DecoderStage {
 public:
  DecoderStage() = default;
  DecoderStage(const DecoderStage&) = delete;
  DecoderStage& operator=(const DecoderStage&) = delete;
  virtual ~DecoderStage() = default;

  void connect(std::unique_ptr<DecoderStage> next) { next_ = std::move(next); }
  /// A part of the current token.
  virtual void part(std::string_view text) = 0;
  /// The current token is complete.
  virtual void end_token() = 0;
  /// No more tokens. Afterwards the stage is as new.
  virtual void finish() { next_->finish(); }
  /// Takes the text that came out at the end of the chain.
  virtual std::string take() { return next_->take(); }

 protected:
  [[nodiscard]] DecoderStage& next() const { return *next_; }
  void pass(std::string_view token) const {
    next_->part(token);
    next_->end_token();
  }

 private:
  std::unique_ptr<DecoderStage> next_;
};

/// The chain of a tokenizer's decoders, ending in a collector.
std::unique_ptr<DecoderStage> build_decoder(const TokenizerImpl& impl);

}  // namespace tandem::text
