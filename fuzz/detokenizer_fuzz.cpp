// Any bytes as text, and as token ids of a byte-level and of a byte-fallback tokenizer: streamed
// pieces are whole characters and together equal the whole, and encoding keeps the text.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "text/byte_level.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using tandem::text::Tokenizer;

Tokenizer make(bool byte_level) {
  std::string vocab = R"("<|end|>": 0)";
  int id = 1;
  for (unsigned b = 0; b < 256; ++b) {
    std::string token;
    if (byte_level) {
      tandem::text::append_utf8(token, tandem::text::byte_to_char(static_cast<uint8_t>(b)));
      if (token == "\"" || token == "\\") token.insert(0, 1, '\\');
    } else {
      constexpr std::string_view kHex = "0123456789ABCDEF";
      token = std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + ">";
    }
    vocab += ",\"" + token + "\":" + std::to_string(id++);
  }
  const std::string parts =
      byte_level
          ? R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"})"
          : R"("decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "ab"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 2}]})";
  if (!byte_level) vocab += R"(,"aba": 257, " ": 258, "é": 259)";
  tandem::text::TokenizerFiles files;
  files.tokenizer_json = R"({"added_tokens": [{"id": 0, "content": "<|end|>", "special": true}],)" +
                         parts + R"(, "model": {"type": "BPE", "byte_fallback": )" +
                         (byte_level ? "false" : "true") + R"(, "vocab": {)" + vocab +
                         R"(}, "merges": []}})";
  auto tokenizer = Tokenizer::parse(files);
  if (!tokenizer.ok()) std::abort();
  return std::move(*tokenizer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::text;
  static const Tokenizer tokenizers[] = {make(true), make(false)};
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string valid = to_valid_utf8(bytes);
  if (!is_valid_utf8(valid) || to_valid_utf8(valid) != valid) std::abort();
  if (is_valid_utf8(bytes) != (valid == bytes)) std::abort();
  for (const Tokenizer& tokenizer : tokenizers) {
    std::vector<TokenId> ids;
    for (const char c : bytes) {
      ids.push_back(1 + static_cast<unsigned char>(c));
      if (c == 'z') ids.push_back(257 + c % 4);
    }
    Detokenizer stream(tokenizer);
    std::string streamed;
    for (const TokenId id : ids) {
      const std::string piece = stream.push(id);
      if (!is_valid_utf8(piece)) std::abort();
      streamed += piece;
    }
    const std::string rest = stream.flush();
    if (!is_valid_utf8(rest) || streamed + rest != tokenizer.decode(ids)) std::abort();
    const auto encoded = tokenizer.encode(bytes);
    if (!encoded.ok()) std::abort();
    for (const TokenId id : *encoded) {
      if (tokenizer.is_control(id)) std::abort();
    }
  }
  const auto encoded = tokenizers[0].encode(bytes);
  if (tokenizers[0].decode(*encoded) != valid) std::abort();
  return 0;
}
