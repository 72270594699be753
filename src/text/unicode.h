// UTF-8, character classes and normalization. The classes and forms come from ICU, which only
// unicode_icu.cpp includes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::text {

constexpr uint32_t kReplacementCharacter = 0xFFFD;
constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

/// A decoded character: `length` bytes, 1 to 4. Where the bytes are not UTF-8, `valid` is false,
/// the code point U+FFFD, and `length` the longest beginning of a character (at least one byte), so
/// that each such part is replaced once, as the Unicode standard recommends (3.9, U+FFFD
/// substitution of maximal subparts).
struct Utf8Char {
  uint32_t code_point;
  uint8_t length;
  bool valid;
};

/// The character at the front of `text`, which must not be empty.
Utf8Char decode_utf8(std::string_view text);
/// The character at the front of bytes known to be valid UTF-8; sets `length`.
inline uint32_t decode_valid(const char* bytes, size_t& length) {
  const auto* b = reinterpret_cast<const unsigned char*>(bytes);
  if (b[0] < 0x80) {
    length = 1;
    return b[0];
  }
  if (b[0] < 0xE0) {
    length = 2;
    return (b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu);
  }
  if (b[0] < 0xF0) {
    length = 3;
    return (b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu);
  }
  length = 4;
  return (b[0] & 0x07u) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu);
}
bool is_valid_utf8(std::string_view text);
/// `text` with each part that is not UTF-8 replaced by U+FFFD.
std::string to_valid_utf8(std::string_view text);
/// Length of the longest beginning of `text` that no bytes after it could change: all but an
/// unfinished character at the end.
size_t complete_utf8_prefix(std::string_view text);
void append_utf8(std::string& out, uint32_t code_point);

/// Character classes, as bits. Every other character has none.
enum CharClass : uint8_t {
  kLetter = 1,        ///< general category L*
  kNumber = 2,        ///< N*
  kSpace = 4,         ///< the White_Space property
  kMark = 8,          ///< M*
  kPunctuation = 16,  ///< P*
  kSymbol = 32,       ///< S*
  kUpper = 64,        ///< Lu or Lt
  kLower = 128,       ///< Ll
};

/// Class bits of every code point, looked up in two steps.
class CharClasses {
 public:
  static const CharClasses& get();
  [[nodiscard]] uint8_t of(uint32_t code_point) const {
    return code_point < 0x110000
               ? blocks_[(uint32_t{index_[code_point >> 7]} << 7) | (code_point & 127)]
               : 0;
  }

 private:
  CharClasses();
  uint16_t index_[0x110000 >> 7];
  std::string storage_;
  const uint8_t* blocks_;
};

/// \w of the Rust regex crate: alphabetic, mark, decimal digit, connector, join control.
bool is_word(uint32_t code_point);
bool is_nonspacing_mark(uint32_t code_point);
/// Appends the full lower-case form, which does not look at neighbours.
void append_lower(std::string& out, uint32_t code_point);
void append_upper(std::string& out, uint32_t code_point);
/// True from the Unicode version on that assigned the character; used to compare libraries of
/// different versions.
bool is_assigned_by(uint32_t code_point, int unicode_major);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
/// `text`, valid UTF-8, in the form.
std::string normalize(std::string_view text, NormalForm form);
bool is_normalized(std::string_view text, NormalForm form);

}  // namespace tandem::text
