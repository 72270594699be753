// What a tokenizer.json says, as plain data: the meeting point of the reader and the encoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/unicode.h"

namespace tandem::text {

/// What Replace and Split look for: a literal string or a regular expression.
struct Pattern {
  bool is_regex = false;
  std::string text;
};

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< not when a word character touches it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< and after it
  bool normalized = false;   ///< looked for after normalization instead of before
  bool special = false;
};

struct Normalizer {
  enum class Type : uint8_t {
    kForm,
    kLowercase,
    kPrepend,
    kReplace,
    kStrip,
    kStripAccents,
    kByteLevel,
  };
  Type type = Type::kForm;
  NormalForm form = NormalForm::kNfc;
  Pattern pattern;      ///< kReplace
  std::string content;  ///< kReplace, kPrepend
  bool left = false;    ///< kStrip
  bool right = false;
};

enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

enum class PrependScheme : uint8_t { kNever, kAlways, kFirst };

struct PreTokenizer {
  enum class Type : uint8_t {
    kByteLevel,
    kSplit,
    kDigits,
    kMetaspace,
    kPunctuation,
    kWhitespace,
    kWhitespaceSplit,
    kFixedLength,
  };
  Type type = Type::kSplit;
  Pattern pattern;  ///< kSplit
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  bool add_prefix_space = false;   ///< kByteLevel
  bool use_regex = true;           ///< kByteLevel
  bool individual_digits = false;  ///< kDigits
  std::string replacement;         ///< kMetaspace: one character
  PrependScheme prepend = PrependScheme::kNever;
  bool split = true;    ///< kMetaspace
  uint32_t length = 0;  ///< kFixedLength: characters
};

struct Decoder {
  enum class Type : uint8_t {
    kByteLevel,
    kByteFallback,
    kFuse,
    kReplace,
    kStrip,
    kMetaspace,
    kBpe,
    kJoinWithSpace,  ///< what happens without a decoder
  };
  Type type = Type::kFuse;
  Pattern pattern;      ///< kReplace
  std::string content;  ///< kReplace, kStrip (one character), kMetaspace (one character), kBpe
  uint32_t start = 0;   ///< kStrip: at most so many at the front
  uint32_t stop = 0;    ///< kStrip: and at the end
  PrependScheme prepend = PrependScheme::kNever;  ///< kMetaspace
};

/// Two tokens, by id, that become one. Its rank is its place in the list.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
};

struct TokenizerSpec {
  std::vector<std::string> tokens;  ///< by id; empty where `known` is false
  std::vector<bool> known;          ///< whether an id has a token, of the model or added
  std::vector<bool> in_model;       ///< whether the token is one of the BPE model's
  std::vector<Merge> merges;
  /// Ranks of the merges where they are not their places in the list: of pairs with equal ranks the
  /// leftmost in a text goes first.
  std::vector<uint32_t> merge_ranks;
  std::vector<AddedToken> added;  ///< in order of id
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  std::vector<Decoder> decoders;
  std::vector<int32_t> prefix_ids;  ///< what the post-processor puts before a text
  std::vector<int32_t> suffix_ids;
  std::optional<int32_t> unk_id;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

}  // namespace tandem::text
