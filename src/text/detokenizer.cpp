#include "text/detokenizer.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/decoder_stage.h"
#include "text/tokenizer_impl.h"

namespace tandem::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool show_special)
    : tokenizer_(tokenizer), show_special_(show_special), first_(build_decoder(tokenizer.impl())) {}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(TokenId id) {
  if (!show_special_ && tokenizer_.is_special(id)) return {};
  const auto spelling = tokenizer_.token_text(id);
  if (!spelling.has_value()) return {};
  first_->part(*spelling);
  first_->end_token();
  return first_->take();
}

std::string Detokenizer::flush() {
  first_->finish();
  return first_->take();
}

std::string Tokenizer::token_bytes(TokenId id) const {
  const auto spelling = token_text(id);
  if (!spelling.has_value()) return {};
  std::string text(*spelling);
  if (is_control(id)) return text;
  const auto replace_all = [&text](const std::string& wanted, const std::string& content) {
    for (size_t at = wanted.empty() ? std::string::npos : text.find(wanted);
         at != std::string::npos; at = text.find(wanted, at + content.size())) {
      text.replace(at, wanted.size(), content);
    }
  };
  for (const Decoder& decoder : impl_->spec().decoders) {
    std::string bytes;
    switch (decoder.type) {
      case Decoder::Type::kByteLevel:
        return unmap_bytes(text, bytes) ? bytes : text;
      case Decoder::Type::kByteFallback:
        if (text.size() == 6 && text.starts_with("<0x") && text[5] == '>' &&
            std::all_of(text.begin() + 3, text.begin() + 5,
                        [](unsigned char c) { return std::isxdigit(c) != 0; })) {
          return {static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16))};
        }
        break;
      case Decoder::Type::kReplace:
        if (!decoder.pattern.is_regex) replace_all(decoder.pattern.text, decoder.content);
        break;
      case Decoder::Type::kMetaspace:
        replace_all(decoder.content, " ");
        break;
      default:
        break;
    }
  }
  return text;
}

}  // namespace tandem::text
