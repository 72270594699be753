// The text side of a GGUF file: tokenizer, chat templates, ends of answers.
#pragma once

#include "base/result.h"
#include "text/chat_files.h"
#include "text/generation_config.h"
#include "text/vocabulary.h"
#include "weights/gguf.h"

namespace tandem::weights {

struct GgufText {
  text::Vocabulary vocabulary;
  text::ChatSources chat;  ///< no templates if the file has none
  /// Ends of an answer: eos, eot and eom of the metadata, then the tokens that end a turn in the
  /// published chat formats, if they are control tokens of this vocabulary.
  text::GenerationConfig generation;
};

/// Errors: kInvalid, kUnsupported (a tokenizer.ggml.model other than gpt2 and llama); they name the
/// key but not the file. Whether the vocabulary makes sense is for its reader to say.
Result<GgufText> gguf_text(const GgufHeader& header);

}  // namespace tandem::weights
