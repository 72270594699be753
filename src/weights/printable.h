// Text from a file or a peer, made safe for a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem::weights {

/// `text` with everything but printable ASCII written as \xNN, cut after `limit` characters. A
/// name from a hostile file must not be able to steer a terminal or fill a log.
inline std::string printable(std::string_view text, size_t limit = 160) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    if (result.size() >= limit) return result + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += "\\x";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  return result;
}

/// "[2, 3]".
inline std::string shape_text(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (const uint64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

}  // namespace tandem::weights
