// Byte-pair encoding: the merges of a vocabulary applied to one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/string_table.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

/// Working memory of one encoding at a time, with a cache of the words met lately. What is in the
/// cache changes the speed and nothing else.
class BpeScratch {
 public:
  BpeScratch();

 private:
  friend class Bpe;
  static constexpr size_t kCacheSlots = size_t{1} << 14;
  static constexpr size_t kCachedBytes = 30;
  static constexpr size_t kCachedIds = 6;
  /// One cache line.
  struct alignas(64) Slot {
    uint32_t tag = 0;
    uint8_t length = 0;  ///< 0: empty
    uint8_t count = 0;
    char key[kCachedBytes] = {};
    int32_t ids[kCachedIds] = {};
  };
  std::vector<Slot> cache_;
  std::vector<int32_t> symbols_;
  std::vector<uint32_t> ranks_;
  std::vector<int32_t> results_;
  std::vector<uint32_t> next_;
  std::vector<uint32_t> previous_;
  std::vector<uint64_t> heap_;
};

/// Immutable and thread-safe; each encoding at a time needs its own scratch.
class Bpe {
 public:
  /// `raw_bytes`: pieces are raw bytes, and tokens are spelled in the alphabet of byte_level.h.
  /// Ids with `control[id]` are never made from text: merges into them are left out. Fails if a
  /// control token is the only way to write a character.
  static Result<Bpe> build(const TokenizerSpec& spec, bool raw_bytes,
                           const std::vector<bool>& control);

  /// Appends the ids of one piece, which is not empty.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  void encode_whole(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void encode_segment(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void initial_symbols(std::string_view piece, std::vector<int32_t>& out) const;
  void add_unknown(std::string_view character, std::vector<int32_t>& out, bool& pending) const;
  [[nodiscard]] int32_t find_character(const char* at, size_t& length) const;
  void merge_short(BpeScratch& scratch, std::vector<int32_t>& out) const;
  void merge_long(BpeScratch& scratch, std::vector<int32_t>& out) const;
  void note_boundary(std::string_view left, std::string_view right);
  [[nodiscard]] bool may_merge_across(int32_t left, int32_t right) const;

  bool raw_bytes_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool cut_segments_ = false;  ///< pieces may be cut where no merge can cross
  int32_t unk_id_ = -1;
  std::string prefix_;
  std::string suffix_;
  std::vector<std::string> spellings_;  ///< what table_ borrows; raw bytes if raw_bytes_
  StringTable table_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};      ///< raw bytes, or ASCII characters
  std::array<int32_t, 256> fallback_ids_{};  ///< <0x00> to <0xFF>
  std::vector<int32_t> char_ids_;            ///< by code point, for the first planes
  std::vector<uint64_t> crossings_;          ///< a Bloom filter of pairs of single characters
};

}  // namespace tandem::text
