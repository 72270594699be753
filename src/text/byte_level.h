// GPT-2's alphabet of printable characters, one for each byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::text {

/// The character that stands for a byte: itself if it is printable Latin-1, else U+0100 and up.
uint32_t byte_to_char(uint8_t byte);
/// The byte that a character stands for, or -1.
int char_to_byte(uint32_t code_point);
/// Every byte of `text` as its character. `marks`, if given, is spread the same way.
std::string map_bytes(std::string_view text, std::string* marks = nullptr);
/// The bytes that `spelling` stands for; false if a character is not of the alphabet.
bool unmap_bytes(std::string_view spelling, std::string& out);

}  // namespace tandem::text
