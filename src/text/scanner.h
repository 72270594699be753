// Hand-written equivalents of the pre-tokenizer patterns that model families share.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::text {

enum class Scanner : uint8_t {
  kGpt2,          ///< GPT-2; also a ByteLevel pre-tokenizer's own pattern
  kLlama3,        ///< Llama 3: digits in threes
  kQwen2,         ///< Qwen2, Qwen3, storyteller: digits one by one
  kQwen35,        ///< Qwen3.5: marks belong to words
  kO200k,         ///< gpt-oss: words split where the case rises
  kTekken,        ///< Mistral Nemo: the same without contractions, digits one by one
  kDigits3,       ///< DeepSeek V3, first step
  kCjk,           ///< second step
  kDeepseekText,  ///< third step
};

/// The scanner that equals a pattern, recognized by its exact spelling.
std::optional<Scanner> find_scanner(std::string_view pattern);
/// The pattern that a scanner equals.
std::string_view scanner_pattern(Scanner scanner);

/// Length of the scanner's match at `position` in `text` (valid UTF-8), 0 if it matches nothing
/// there. `position` must be less than the size and at a character's beginning.
size_t scan(Scanner scanner, std::string_view text, size_t position);

}  // namespace tandem::text
