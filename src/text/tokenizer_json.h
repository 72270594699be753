// Reads tokenizer.json, the file format of the Hugging Face tokenizers library.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

/// Reads and checks a whole tokenizer.json. Everything in it that changes how text is encoded or
/// decoded is either understood or refused by its name. Ids are under kMaxTokenId, tokens at most
/// kMaxTokenBytes long, no id or spelling is given twice, and every merge names tokens that exist.
Result<TokenizerSpec> read_tokenizer_json(std::string_view json);

constexpr int64_t kMaxTokenId = int64_t{1} << 22;
constexpr size_t kMaxTokenBytes = size_t{1} << 16;
constexpr size_t kMaxTokenizerJsonBytes = size_t{1} << 29;

}  // namespace tandem::text
