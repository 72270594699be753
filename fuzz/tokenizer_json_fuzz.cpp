// Any bytes as a tokenizer.json: refused with a reason, or a tokenizer that encodes and decodes,
// and makes no control token of text from outside.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::text::Tokenizer;
  tandem::text::TokenizerFiles files;
  files.tokenizer_json.assign(reinterpret_cast<const char*>(data), size);
  files.chat_template = "<think>";
  const auto tokenizer = Tokenizer::parse(files);
  if (!tokenizer.ok()) {
    if (tokenizer.error().message.empty()) std::abort();
    return 0;
  }
  for (const std::string_view text :
       {std::string_view("Hello, world! it's 12  é\n\n"), std::string_view("<s><think>a\xFF"),
        std::string_view("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")}) {
    for (const bool parse_control : {false, true}) {
      const auto ids =
          tokenizer->encode(text, {.add_special_tokens = false, .parse_control = parse_control});
      if (!ids.ok()) continue;
      tandem::text::Detokenizer stream(*tokenizer, true);
      std::string streamed;
      for (const auto id : *ids) {
        if (!tokenizer->token_text(id).has_value()) std::abort();
        streamed += stream.push(id);
        if (tokenizer->token_bytes(id).size() > size) std::abort();
      }
      streamed += stream.flush();
      if (streamed != tokenizer->decode(*ids, true)) std::abort();
    }
  }
  return 0;
}
