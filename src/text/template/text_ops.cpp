#include "text/template/text_ops.h"

#include <algorithm>
#include <cstring>

#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

size_t last_character(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

/// Rebuilds the text character by character.
template <typename Map>
MarkedText map_characters(const MarkedText& text, const Map& map) {
  MarkedText out;
  std::string mapped;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(std::string_view(text.text()).substr(at));
    mapped.clear();
    map(mapped, c.code_point);
    out.append(mapped, text.marks()[at] != 0);
    at += c.length;
  }
  return out;
}

unsigned class_of(uint32_t code_point) {
  return CharClasses::get().of(code_point);
}

}  // namespace

bool is_space_at(std::string_view text) {
  const uint32_t c = decode_utf8(text).code_point;
  // Python also counts the four information separators.
  return (class_of(c) & kSpace) != 0 || (c >= 0x1C && c <= 0x1F);
}

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (wanted.size() < 2) return text.find(wanted, from);
  // The C library's search is linear even for aaa…b in aaaa…, unlike the standard library's.
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_text_last(std::string_view text, std::string_view wanted) {
  if (wanted.size() < 2) return text.rfind(wanted);
  const std::string backward(text.rbegin(), text.rend());
  const std::string wanted_backward(wanted.rbegin(), wanted.rend());
  const size_t at = find_text(backward, wanted_backward);
  return at == std::string::npos ? at : text.size() - at - wanted.size();
}

std::vector<size_t> character_offsets(const MarkedText& text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text.text()[i]) & 0xC0) != 0x80) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

MarkedText strip(const MarkedText& text, std::optional<std::string_view> characters, bool left,
                 bool right) {
  const std::string_view all = text.text();
  const auto goes = [&](size_t at) {
    const std::string_view rest = all.substr(at);
    if (!characters.has_value()) return is_space_at(rest);
    const std::string_view character = rest.substr(0, decode_utf8(rest).length);
    return characters->find(character) != std::string_view::npos;
  };
  size_t begin = 0;
  size_t end = all.size();
  while (left && begin < end && goes(begin)) begin += decode_utf8(all.substr(begin)).length;
  while (right && end > begin && goes(last_character(all, end))) end = last_character(all, end);
  return text.substr(begin, end - begin);
}

MarkedText replace(const MarkedText& text, std::string_view from, const MarkedText& to,
                   int64_t limit) {
  MarkedText out;
  size_t done = 0;
  if (from.empty()) {
    // Between all characters and at both ends.
    const std::vector<size_t> offsets = character_offsets(text);
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (limit != 0) {
        out.append(to);
        if (limit > 0) --limit;
      }
      if (i + 1 < offsets.size()) out.append(text, offsets[i], offsets[i + 1] - offsets[i]);
    }
    return out;
  }
  for (size_t at = find_text(text.text(), from); at != std::string::npos && limit != 0;
       at = find_text(text.text(), from, done)) {
    out.append(text, done, at - done);
    out.append(to);
    done = at + from.size();
    if (limit > 0) --limit;
  }
  out.append(text, done, text.size() - done);
  return out;
}

MarkedText lower(const MarkedText& text) {
  return map_characters(text, append_lower);
}
MarkedText upper(const MarkedText& text) {
  return map_characters(text, append_upper);
}

MarkedText swap_case(const MarkedText& text) {
  return map_characters(text, [](std::string& out, uint32_t c) {
    if ((class_of(c) & kLower) != 0) {
      append_upper(out, c);
    } else {
      append_lower(out, c);
    }
  });
}

MarkedText capitalize(const MarkedText& text) {
  bool first = true;
  return map_characters(text, [&first](std::string& out, uint32_t c) {
    if (first) {
      append_upper(out, c);
    } else {
      append_lower(out, c);
    }
    first = false;
  });
}

MarkedText title(const MarkedText& text) {
  bool in_word = false;
  return map_characters(text, [&in_word](std::string& out, uint32_t c) {
    const bool cased = (class_of(c) & (kUpper | kLower)) != 0;
    if (cased && !in_word) {
      append_upper(out, c);
    } else {
      append_lower(out, c);
    }
    in_word = cased;
  });
}

std::vector<MarkedText> split_space(const MarkedText& text, int64_t limit) {
  std::vector<MarkedText> parts;
  const std::string_view all = text.text();
  size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < all.size() && is_space_at(all.substr(at)) == space) {
      at += decode_utf8(all.substr(at)).length;
    }
  };
  while (true) {
    skip(true);
    if (at >= all.size()) return parts;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(strip(text.substr(at), std::nullopt, false, true));
      return parts;
    }
    const size_t begin = at;
    skip(false);
    parts.push_back(text.substr(begin, at - begin));
  }
}

std::vector<MarkedText> split(const MarkedText& text, std::string_view separator, int64_t limit,
                              bool from_right) {
  std::vector<MarkedText> parts;
  const std::string& all = text.text();
  if (from_right && limit >= 0) {
    // Matches count from the right, so the leftmost ones are joined again.
    MarkedText rest = text;
    while (static_cast<int64_t>(parts.size()) < limit) {
      const size_t at = find_text_last(rest.text(), separator);
      if (at == std::string::npos) break;
      parts.push_back(rest.substr(at + separator.size()));
      rest.truncate(at);
    }
    parts.push_back(std::move(rest));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t done = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = find_text(all, separator, done);
    if (at == std::string::npos) break;
    parts.push_back(text.substr(done, at - done));
    done = at + separator.size();
  }
  parts.push_back(text.substr(done));
  return parts;
}

std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends) {
  std::vector<MarkedText> lines;
  const std::string_view all = text.text();
  size_t begin = 0;
  for (size_t at = 0; at < all.size();) {
    const Utf8Char c = decode_utf8(all.substr(at));
    const uint32_t p = c.code_point;
    const bool ends = (p >= 0x0A && p <= 0x0D) || (p >= 0x1C && p <= 0x1E) || p == 0x85 ||
                      p == 0x2028 || p == 0x2029;
    size_t length = c.length;
    if (p == '\r' && at + 1 < all.size() && all[at + 1] == '\n') length = 2;
    if (ends) {
      lines.push_back(text.substr(begin, (keep_ends ? at + length : at) - begin));
      begin = at + length;
    }
    at += length;
  }
  if (begin < all.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace tandem::text::jinja
