#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace tandem::text {

namespace {

struct Alphabet {
  std::array<uint16_t, 256> chars{};
  std::array<int16_t, 324> bytes{};

  Alphabet() {
    bytes.fill(-1);
    uint16_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable =
          (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      chars[b] = printable ? static_cast<uint16_t>(b) : next++;
      bytes[chars[b]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

uint32_t byte_to_char(uint8_t byte) {
  return alphabet().chars[byte];
}

int char_to_byte(uint32_t code_point) {
  return code_point < alphabet().bytes.size() ? alphabet().bytes[code_point] : -1;
}

std::string map_bytes(std::string_view text, std::string* marks) {
  std::string out;
  std::string out_marks;
  out.reserve(text.size() + text.size() / 4);
  for (size_t i = 0; i < text.size(); ++i) {
    append_utf8(out, byte_to_char(static_cast<uint8_t>(text[i])));
    if (marks != nullptr) out_marks.resize(out.size(), (*marks)[i]);
  }
  if (marks != nullptr) *marks = std::move(out_marks);
  return out;
}

bool unmap_bytes(std::string_view spelling, std::string& out) {
  out.clear();
  while (!spelling.empty()) {
    const Utf8Char c = decode_utf8(spelling);
    const int byte = c.valid ? char_to_byte(c.code_point) : -1;
    if (byte < 0) return false;
    out.push_back(static_cast<char>(byte));
    spelling.remove_prefix(c.length);
  }
  return true;
}

}  // namespace tandem::text
