#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace tandem::text {

namespace {

bool is_space(uint32_t code_point) {
  return (CharClasses::get().of(code_point) & kSpace) != 0;
}

size_t last_character(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(decode_utf8(text.substr(last_character(text, begin))).code_point)) {
    return true;
  }
  return end < text.size() && is_word(decode_utf8(text.substr(end)).code_point);
}

size_t skip_space_back(std::string_view text, size_t end, size_t stop) {
  while (end > stop) {
    const size_t begin = last_character(text, end);
    if (!is_space(decode_utf8(text.substr(begin)).code_point)) break;
    end = begin;
  }
  return std::max(end, stop);
}

size_t skip_space(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Char c = decode_utf8(text.substr(begin));
    if (!is_space(c.code_point)) break;
    begin += c.length;
  }
  return begin;
}

}  // namespace

uint32_t AddedTokenMatcher::step(uint32_t node, unsigned char byte) const {
  const auto& next = nodes_[node].next;
  const auto found = std::lower_bound(next.begin(), next.end(), byte,
                                      [](const auto& a, unsigned char b) { return a.first < b; });
  return found != next.end() && found->first == byte ? found->second : 0;
}

void AddedTokenMatcher::add(const AddedToken& token, bool is_control) {
  if (token.content.empty()) return;
  begins_[static_cast<unsigned char>(token.content[0])] = true;
  uint32_t node = 0;
  for (const char c : token.content) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t to = step(node, byte);
    if (to == 0) {
      to = static_cast<uint32_t>(nodes_.size());
      auto& next = nodes_[node].next;
      next.insert(std::upper_bound(next.begin(), next.end(), std::pair{byte, to}), {byte, to});
      nodes_.emplace_back();
    }
    node = to;
  }
  // Two contents may become the same by normalization: the first one stays.
  if (nodes_[node].entry < 0) nodes_[node].entry = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({token, is_control});
}

int32_t AddedTokenMatcher::longest(std::string_view text, size_t at, const Marks& marks) const {
  int32_t best = -1;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    node = step(node, static_cast<unsigned char>(text[i]));
    if (node == 0) break;
    const int32_t entry = nodes_[node].entry;
    if (entry < 0) continue;
    if (tokens_[static_cast<size_t>(entry)].is_control && marks.from_outside(at, i + 1)) continue;
    best = entry;
  }
  return best;
}

void AddedTokenMatcher::find(std::string_view text, const Marks& marks,
                             std::vector<Stretch>& out) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const int32_t entry = longest(text, at, marks);
    if (entry < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(entry)].token;
    size_t begin = at;
    size_t end = at + token.content.size();
    at = end;
    if (token.single_word && touches_word(text, begin, end)) continue;
    if (token.lstrip) begin = skip_space_back(text, begin, std::min(done, begin));
    if (token.rstrip) end = skip_space(text, end);
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

}  // namespace tandem::text
