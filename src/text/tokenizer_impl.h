// The inside of a Tokenizer, shared by the encoder and the decoder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_spec.h"
#include "text/vocabulary.h"

namespace tandem::text {

class TokenizerImpl {
 public:
  static Result<std::shared_ptr<const TokenizerImpl>> build(const TokenizerFiles& files);
  static Result<std::shared_ptr<const TokenizerImpl>> build(const Vocabulary& vocabulary,
                                                            const std::string& chat_template);

  Result<std::vector<TokenId>> encode(std::string_view text, const std::string* marks,
                                      bool from_outside, bool add_special_tokens) const;

  [[nodiscard]] bool has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < spec_.known.size() &&
           spec_.known[static_cast<size_t>(id)];
  }
  [[nodiscard]] const TokenizerSpec& spec() const { return spec_; }
  [[nodiscard]] bool is_control(TokenId id) const {
    return has(id) && control_[static_cast<size_t>(id)];
  }
  [[nodiscard]] bool is_special(TokenId id) const {
    return has(id) && special_[static_cast<size_t>(id)];
  }
  [[nodiscard]] TokenId find(std::string_view spelling) const {
    return by_spelling_.find(spelling);
  }
  [[nodiscard]] std::optional<TokenId> bos_id() const { return bos_id_; }
  [[nodiscard]] std::optional<TokenId> eos_id() const { return eos_id_; }
  /// The regular expressions of Replace decoders, in their order.
  [[nodiscard]] const std::vector<Regex>& decoder_patterns() const { return decoder_patterns_; }

 private:
  TokenizerImpl() = default;
  /// From spec_ to what encodes.
  Status prepare(const std::string& chat_template);
  Status choose_control(const std::string& chat_template);
  Status read_config(const std::string& json);
  Status add_matchers();
  Status encode_text(std::string_view text, const Marks& marks, BpeScratch& scratch,
                     std::vector<TokenId>& out) const;
  Status encode_plain(std::string& text, std::string* marks, bool from_outside, bool at_start,
                      BpeScratch& scratch, std::vector<TokenId>& out) const;
  Status encode_pieces(std::string& text, bool at_start, BpeScratch& scratch,
                       std::vector<TokenId>& out) const;
  std::unique_ptr<BpeScratch> take_scratch() const;
  void give_scratch(std::unique_ptr<BpeScratch> scratch) const;

  TokenizerSpec spec_;
  std::vector<bool> control_;
  std::vector<bool> special_;
  StringTable by_spelling_;
  AddedTokenMatcher raw_matcher_;         ///< looked for before normalization
  AddedTokenMatcher normalized_matcher_;  ///< looked for after it
  NormalizerChain normalizers_;
  PreTokenizerChain pre_tokenizers_;
  std::optional<Bpe> bpe_;
  std::vector<Regex> decoder_patterns_;
  std::optional<TokenId> bos_id_;
  std::optional<TokenId> eos_id_;

  /// Working memory between encodings, with warm caches; guards scratch_.
  mutable Mutex scratch_mutex_;
  mutable std::vector<std::unique_ptr<BpeScratch>> scratch_;
};

}  // namespace tandem::text
