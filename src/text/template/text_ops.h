// Python's string operations on marked text. Positions and lengths in arguments count characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/marked_text.h"

namespace tandem::text::jinja {

/// As std::string::find and rfind, in linear time whatever the texts are.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);
size_t find_text_last(std::string_view text, std::string_view wanted);
/// Byte offsets of all characters, and the size at the end.
std::vector<size_t> character_offsets(const MarkedText& text);
size_t count_characters(std::string_view text);
/// Takes characters of the set (white space, if there is none) off the ends.
MarkedText strip(const MarkedText& text, std::optional<std::string_view> characters, bool left,
                 bool right);
/// At most `limit` replacements, all if negative.
MarkedText replace(const MarkedText& text, std::string_view from, const MarkedText& to,
                   int64_t limit = -1);
MarkedText lower(const MarkedText& text);
MarkedText upper(const MarkedText& text);
MarkedText swap_case(const MarkedText& text);
/// First character upper, the rest lower.
MarkedText capitalize(const MarkedText& text);
/// Python's str.title: every run of letters is capitalized.
MarkedText title(const MarkedText& text);
std::vector<MarkedText> split_space(const MarkedText& text, int64_t limit);
std::vector<MarkedText> split(const MarkedText& text, std::string_view separator, int64_t limit,
                              bool from_right);
std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends);
bool is_space_at(std::string_view text);

}  // namespace tandem::text::jinja
