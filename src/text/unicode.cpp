#include "text/unicode.h"

#include <cstring>

namespace tandem::text {

namespace {

/// Length of a beginning of ASCII, eight bytes at a time.
size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  while (i + 8 <= text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
    i += 8;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

/// Bytes that the character with this first byte has, and the range of its second byte (table 3-7
/// of the Unicode standard); 0 if no character begins so.
struct Lead {
  uint8_t length;
  uint8_t low;
  uint8_t high;
};

Lead lead_of(unsigned char first) {
  if (first < 0x80) return {1, 0, 0};
  if (first < 0xC2) return {0, 0, 0};
  if (first < 0xE0) return {2, 0x80, 0xBF};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3, 0x80, 0xBF};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first < 0xF4) return {4, 0x80, 0xBF};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const Lead lead = lead_of(first);
  if (lead.length == 1) return {first, 1, true};
  if (lead.length == 0) return {kReplacementCharacter, 1, false};
  uint8_t good = 1;
  while (good < lead.length && good < text.size()) {
    const auto byte = static_cast<unsigned char>(text[good]);
    const unsigned low = good == 1 ? lead.low : 0x80u;
    const unsigned high = good == 1 ? lead.high : 0xBFu;
    if (byte < low || byte > high) break;
    ++good;
  }
  if (good < lead.length) return {kReplacementCharacter, good, false};
  size_t length = 0;
  return {decode_valid(text.data(), length), lead.length, true};
}

bool is_valid_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Utf8Char c = decode_utf8(text);
    if (!c.valid) return false;
    text.remove_prefix(c.length);
  }
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t plain = ascii_prefix(text);
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    const Utf8Char c = decode_utf8(text);
    out.append(c.valid ? text.substr(0, c.length) : kReplacementUtf8);
    text.remove_prefix(c.length);
  }
  return out;
}

size_t complete_utf8_prefix(std::string_view text) {
  // An unfinished character is a first byte and at most two more, at the end.
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    const Lead lead = lead_of(static_cast<unsigned char>(tail[0]));
    if (lead.length <= 1) {
      if (lead.length == 1) break;
      continue;  // a byte that may belong to a character before it
    }
    const Utf8Char c = decode_utf8(tail);
    if (!c.valid && c.length == back && back < lead.length) return text.size() - back;
    break;
  }
  return text.size();
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace tandem::text
