// The only file that includes ICU.
#include <unicode/bytestream.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <unordered_map>

#include "text/unicode.h"

namespace tandem::text {

namespace {

uint8_t class_of(uint32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  const uint32_t mask = U_GET_GC_MASK(c);
  unsigned bits = 0;
  if ((mask & U_GC_L_MASK) != 0) bits |= kLetter;
  if ((mask & U_GC_N_MASK) != 0) bits |= kNumber;
  if (u_hasBinaryProperty(c, UCHAR_WHITE_SPACE) != 0) bits |= kSpace;
  if ((mask & U_GC_M_MASK) != 0) bits |= kMark;
  if ((mask & U_GC_P_MASK) != 0) bits |= kPunctuation;
  if ((mask & U_GC_S_MASK) != 0) bits |= kSymbol;
  if ((mask & (U_GC_LU_MASK | U_GC_LT_MASK)) != 0) bits |= kUpper;
  if ((mask & U_GC_LL_MASK) != 0) bits |= kLower;
  return static_cast<uint8_t>(bits);
}

const icu::Normalizer2* form_instance(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* instance = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      instance = icu::Normalizer2::getNFCInstance(status);
      break;
    case NormalForm::kNfd:
      instance = icu::Normalizer2::getNFDInstance(status);
      break;
    case NormalForm::kNfkc:
      instance = icu::Normalizer2::getNFKCInstance(status);
      break;
    case NormalForm::kNfkd:
      instance = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  return U_SUCCESS(status) ? instance : nullptr;
}

icu::StringPiece piece(std::string_view text) {
  return {text.data(), static_cast<int32_t>(text.size())};
}

}  // namespace

CharClasses::CharClasses() : blocks_(nullptr) {
  std::unordered_map<std::string, uint16_t> seen;
  for (uint32_t block = 0; block < (0x110000 >> 7); ++block) {
    std::string bytes(128, '\0');
    for (uint32_t i = 0; i < 128; ++i) bytes[i] = static_cast<char>(class_of(block << 7 | i));
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
  const auto c = static_cast<UChar32>(code_point);
  return u_isUAlphabetic(c) != 0 ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) != 0;
}

bool is_nonspacing_mark(uint32_t code_point) {
  return u_charType(static_cast<UChar32>(code_point)) == U_NON_SPACING_MARK;
}

void append_lower(std::string& out, uint32_t code_point) {
  append_utf8(out, static_cast<uint32_t>(u_tolower(static_cast<UChar32>(code_point))));
  // The one character with a longer lower-case form: I with dot above keeps its dot.
  if (code_point == 0x130) append_utf8(out, 0x307);
}

void append_upper(std::string& out, uint32_t code_point) {
  icu::UnicodeString(static_cast<UChar32>(code_point))
      .toUpper(icu::Locale::getRoot())
      .toUTF8String(out);
}

bool is_assigned_by(uint32_t code_point, int unicode_major) {
  UVersionInfo age{};
  u_charAge(static_cast<UChar32>(code_point), age);
  return age[0] != 0 && age[0] <= unicode_major;
}

std::string normalize(std::string_view text, NormalForm form) {
  const icu::Normalizer2* instance = form_instance(form);
  if (instance == nullptr || text.size() > INT32_MAX / 4) return std::string(text);
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  UErrorCode status = U_ZERO_ERROR;
  instance->normalizeUTF8(0, piece(text), sink, nullptr, status);
  return U_SUCCESS(status) ? out : std::string(text);
}

bool is_normalized(std::string_view text, NormalForm form) {
  const icu::Normalizer2* instance = form_instance(form);
  if (instance == nullptr) return true;
  UErrorCode status = U_ZERO_ERROR;
  return instance->isNormalizedUTF8(piece(text), status) != 0 && U_SUCCESS(status);
}

}  // namespace tandem::text
