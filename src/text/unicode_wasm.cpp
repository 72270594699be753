// Unicode without ICU: classes from the table, normal forms and cases from the host. The host's
// Unicode is 15.0 or later. Normal forms of characters that 15.0 has never change (Unicode's
// stability policy); what came later is kept from the host, so that the result is ICU 72's.
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "text/host_wasm.h"
#include "text/unicode.h"
#include "text/unicode_table.h"

namespace tandem::text {

namespace {

constexpr uint32_t kUpperForm = 4;
constexpr uint32_t kLowerForm = 5;

std::string transform(std::string_view text, uint32_t form) {
  void* answer = tandem_host_transform(form, text.data(), static_cast<uint32_t>(text.size()));
  if (answer == nullptr) return std::string(text);
  uint32_t length = 0;
  std::memcpy(&length, answer, sizeof(length));
  std::string out(static_cast<const char*>(answer) + sizeof(length), length);
  std::free(answer);
  return out;
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

bool all_assigned(std::string_view text) {
  size_t length = 0;
  for (size_t at = 0; at < text.size(); at += length) {
    if ((unicode_bits(decode_valid(text.data() + at, length)) & kAssignedBit) == 0) return false;
  }
  return true;
}

void append_case(std::string& out, uint32_t code_point, uint32_t form) {
  std::string own;
  append_utf8(own, code_point);
  if ((unicode_bits(code_point) & kAssignedBit) != 0) {
    // A later version may have given a character a counterpart that 15.0 lacks.
    const std::string changed = transform(own, form);
    if (all_assigned(changed)) own = changed;
  }
  out += own;
}

}  // namespace

CharClasses::CharClasses() : blocks_(nullptr) {
  std::unordered_map<std::string, uint16_t> seen;
  const auto runs = unicode_runs();
  size_t run = 0;
  for (uint32_t block = 0; block < (0x110000 >> 7); ++block) {
    std::string bytes(128, '\0');
    for (uint32_t i = 0; i < 128; ++i) {
      while (run + 1 < runs.size() && runs[run + 1] >> 11 <= (block << 7 | i)) ++run;
      bytes[i] = static_cast<char>(runs[run] & kClassBits);
    }
    const auto [place, is_new] = seen.emplace(bytes, static_cast<uint16_t>(storage_.size() >> 7));
    if (is_new) storage_ += bytes;
    index_[block] = place->second;
  }
  blocks_ = reinterpret_cast<const uint8_t*>(storage_.data());
}

const CharClasses& CharClasses::get() {
  static const CharClasses classes;
  return classes;
}

bool is_word(uint32_t code_point) {
  return (unicode_bits(code_point) & kWordBit) != 0;
}

bool is_nonspacing_mark(uint32_t code_point) {
  return (unicode_bits(code_point) & kNonspacingBit) != 0;
}

void append_lower(std::string& out, uint32_t code_point) {
  append_case(out, code_point, kLowerForm);
}

void append_upper(std::string& out, uint32_t code_point) {
  append_case(out, code_point, kUpperForm);
}

bool is_assigned_by(uint32_t code_point, int unicode_major) {
  return unicode_major >= 15 && (unicode_bits(code_point) & kAssignedBit) != 0;
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  // A character that 15.0 does not know stays as it is, and nothing joins or moves across it.
  std::string out;
  size_t begin = 0;
  const auto flush = [&](size_t end) {
    const std::string_view part = text.substr(begin, end - begin);
    out += is_ascii(part) ? std::string(part) : transform(part, static_cast<uint32_t>(form));
  };
  size_t length = 0;
  for (size_t at = 0; at < text.size(); at += length) {
    if ((unicode_bits(decode_valid(text.data() + at, length)) & kAssignedBit) != 0) continue;
    flush(at);
    out += text.substr(at, length);
    begin = at + length;
  }
  flush(text.size());
  return out;
}

bool is_normalized(std::string_view text, NormalForm form) {
  return is_ascii(text) || normalize(text, form) == text;
}

}  // namespace tandem::text
