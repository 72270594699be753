// A tokenizer as a GGUF file holds it: lists of tokens instead of a tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

/// What a token is. Values are those of tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Vocabulary {
  /// Byte pairs by the rank of merges in the alphabet of byte_level.h ("gpt2"), or by the score of
  /// the token that they make in text with U+2581 for spaces ("llama").
  enum class Model : uint8_t { kMerges, kScores } model = Model::kMerges;
  std::string splitter;  ///< tokenizer.ggml.pre; kMerges only
  std::vector<std::string> tokens;
  std::vector<TokenKind> kinds;     ///< one a token
  std::vector<float> scores;        ///< kScores: one a token
  std::vector<std::string> merges;  ///< kMerges: two tokens with a space between
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  std::optional<int32_t> unk_id;
  std::optional<bool> add_bos;  ///< before every text; nothing: as the splitter or model has it
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;  ///< kScores: a space before every stretch of text
  /// White space after a control token, and after "</s>", is dropped (Phi-3).
  bool control_takes_spaces = false;
};

/// The same as a tokenizer.json would say it. Errors: kInvalid (an id, kind or merge that names no
/// token, a token that stands twice or is longer than kMaxTokenBytes), kUnsupported (a splitter
/// that is not known, by its name).
Result<TokenizerSpec> vocabulary_spec(const Vocabulary& vocabulary);

}  // namespace tandem::text
