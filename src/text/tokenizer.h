// Text to token ids and back, as the model's tokenizer.json says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/marked_text.h"

namespace tandem::text {

/// A token's number: 0 to vocab_size() - 1.
using TokenId = int32_t;

struct EncodeOptions {
  /// Put the tokens around the text that the model's post-processor asks for (a BOS, mostly).
  bool add_special_tokens = false;
  /// Let control tokens that are written out in the text become control tokens. Right for text
  /// that the operator vouches for, never for a user's. With true, ids equal Hugging Face's.
  bool parse_control = false;
};

/// What Tokenizer::load reads, for callers that have the files' contents instead of a folder.
struct TokenizerFiles {
  std::string tokenizer_json;         ///< contents of tokenizer.json
  std::string tokenizer_config_json;  ///< contents of tokenizer_config.json; may be empty
  /// All chat template sources, joined: added tokens that occur in them are control tokens.
  std::string chat_template;
};

class TokenizerImpl;
struct Vocabulary;

/// A loaded tokenizer. Immutable: every method may be called from several threads at once. Copies
/// are cheap and share the vocabulary.
class Tokenizer {
 public:
  /// Reads tokenizer.json, tokenizer_config.json (if there) and the chat template (if there) of a
  /// model folder. Fails with the file and the reason on anything missing, malformed or
  /// unsupported.
  static Result<Tokenizer> load(const std::filesystem::path& folder);
  static Result<Tokenizer> parse(const TokenizerFiles& files);
  /// The tokenizer of a GGUF file. Errors: as vocabulary_spec(); they don't name the file.
  static Result<Tokenizer> from_vocabulary(const Vocabulary& vocabulary,
                                           const std::string& chat_template);

  /// Token ids of `text`. Bytes that are not UTF-8 are read as U+FFFD. Fails only if the text is
  /// over kMaxTextBytes or a pattern of the tokenizer gives up on it.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    EncodeOptions options = {}) const;
  /// Token ids of a rendered chat template: control tokens are matched only in bytes that the
  /// template itself wrote. With `add_special_tokens`, a BOS is not doubled if the text already
  /// begins with it.
  [[nodiscard]] Result<std::vector<TokenId>> encode(const MarkedText& text,
                                                    bool add_special_tokens = false) const;

  /// Text of `ids`, valid UTF-8; bytes that form no character become U+FFFD. Tokens marked special
  /// are left out unless `show_special`. Ids outside the vocabulary are left out.
  [[nodiscard]] std::string decode(const std::vector<TokenId>& ids,
                                   bool show_special = false) const;

  /// One more than the greatest id. A model's embedding may have more rows than this.
  [[nodiscard]] uint32_t vocab_size() const;
  /// The token as tokenizer.json spells it; nothing for an id that no token has.
  [[nodiscard]] std::optional<std::string_view> token_text(TokenId id) const;
  /// The id of the token spelled exactly so.
  [[nodiscard]] std::optional<TokenId> token_id(std::string_view spelling) const;
  /// The raw bytes that the token stands for inside a text, before any invalid UTF-8 is replaced
  /// (a control token: its spelling). For constrained decoding and logprobs.
  [[nodiscard]] std::string token_bytes(TokenId id) const;
  /// True for special added tokens, and for added tokens that the chat template writes (such as
  /// <think>): the ones that text from outside never becomes.
  [[nodiscard]] bool is_control(TokenId id) const;
  /// True for tokens that decode() leaves out by default (a subset of the control tokens).
  [[nodiscard]] bool is_special(TokenId id) const;

  /// From tokenizer_config.json; nothing if it names none.
  [[nodiscard]] std::optional<TokenId> bos_id() const;
  [[nodiscard]] std::optional<TokenId> eos_id() const;

  [[nodiscard]] const TokenizerImpl& impl() const { return *impl_; }

  static constexpr uint64_t kMaxTextBytes = uint64_t{1} << 28;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const TokenizerImpl> impl_;
};

}  // namespace tandem::text
