#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

// Merging by repeated search of the best pair is quadratic but without overhead; from here on a
// heap is faster.
constexpr size_t kShortSymbols = 40;
// Ids of characters up to the CJK extensions are looked up directly.
constexpr uint32_t kDirectChars = 0x32000;
constexpr size_t kCrossingBits = size_t{1} << 20;

constexpr uint32_t kNone = UINT32_MAX;

size_t crossing_bit(int32_t left, int32_t right) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  return mix_hash(key ^ 0xA0761D6478BD642F, 0xE7037ED1A0B428DB) % kCrossingBits;
}

std::string_view first_character(std::string_view text) {
  return text.substr(0, decode_utf8(text).length);
}

std::string_view last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

std::string byte_token(unsigned byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace

BpeScratch::BpeScratch() : cache_(kCacheSlots) {}

Result<Bpe> Bpe::build(const TokenizerSpec& spec, bool raw_bytes,
                       const std::vector<bool>& control) {
  Bpe bpe;
  bpe.raw_bytes_ =
      raw_bytes && spec.continuing_subword_prefix.empty() && spec.end_of_word_suffix.empty();
  if (raw_bytes && !bpe.raw_bytes_) {
    return unsupported("a ByteLevel pre_tokenizer with subword prefixes or suffixes");
  }
  bpe.ignore_merges_ = spec.ignore_merges;
  bpe.byte_fallback_ = spec.byte_fallback;
  bpe.fuse_unk_ = spec.fuse_unk;
  bpe.unk_id_ = spec.unk_id.value_or(-1);
  bpe.prefix_ = spec.continuing_subword_prefix;
  bpe.suffix_ = spec.end_of_word_suffix;
  bpe.cut_segments_ =
      !bpe.raw_bytes_ && bpe.prefix_.empty() && bpe.suffix_.empty() && !bpe.ignore_merges_;

  const auto usable = [&](size_t id) { return spec.in_model[id] && !control[id]; };
  bpe.spellings_.resize(spec.tokens.size());
  bpe.table_.reserve(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!usable(id)) continue;
    if (!bpe.raw_bytes_) {
      bpe.spellings_[id] = spec.tokens[id];
    } else if (!unmap_bytes(spec.tokens[id], bpe.spellings_[id])) {
      continue;  // a spelling outside the alphabet, which no text has
    }
    if (!bpe.spellings_[id].empty())
      bpe.table_.insert(bpe.spellings_[id], static_cast<int32_t>(id));
  }
  std::string bytes;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!spec.in_model[id] || !control[id] || spec.tokens[id].empty()) continue;
    const bool single = bpe.raw_bytes_
                            ? unmap_bytes(spec.tokens[id], bytes) && bytes.size() == 1
                            : decode_utf8(spec.tokens[id]).length == spec.tokens[id].size();
    if (single) {
      return unsupported("control token \"" + spec.tokens[id] +
                         "\", which is also how that one character is written");
    }
  }
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    bpe.byte_ids_[b] = bpe.raw_bytes_ || b < 0x80 ? bpe.table_.find({&byte, 1}) : -1;
  }
  if (!bpe.raw_bytes_) {
    bpe.char_ids_.assign(kDirectChars, -1);
    for (size_t id = 0; id < bpe.spellings_.size(); ++id) {
      const std::string& spelling = bpe.spellings_[id];
      if (spelling.empty()) continue;
      const Utf8Char c = decode_utf8(spelling);
      if (c.length == spelling.size() && c.code_point < kDirectChars) {
        bpe.char_ids_[c.code_point] = static_cast<int32_t>(id);
      }
    }
  }
  // The byte tokens are spelled the same in either alphabet.
  StringTable plain(bpe.raw_bytes_ ? spec.tokens.size() : 0);
  if (bpe.byte_fallback_) {
    for (size_t id = 0; bpe.raw_bytes_ && id < spec.tokens.size(); ++id) {
      if (usable(id)) plain.insert(spec.tokens[id], static_cast<int32_t>(id));
    }
    for (unsigned b = 0; b < 256; ++b) {
      bpe.fallback_ids_[b] = (bpe.raw_bytes_ ? plain : bpe.table_).find(byte_token(b));
    }
  }
  bpe.merges_.reserve(spec.merges.size());
  bpe.crossings_.assign(kCrossingBits / 64, 0);
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const Merge& merge = spec.merges[i];
    const auto rank = spec.merge_ranks.empty() ? static_cast<uint32_t>(i) : spec.merge_ranks[i];
    const auto result = static_cast<size_t>(merge.result);
    if (control[result]) continue;
    bpe.merges_.insert(merge.left, merge.right, rank, merge.result);
    if (bpe.cut_segments_) {
      bpe.note_boundary(spec.tokens[static_cast<size_t>(merge.left)],
                        spec.tokens[static_cast<size_t>(merge.right)]);
    }
  }
  return bpe;
}

void Bpe::note_boundary(std::string_view left, std::string_view right) {
  if (left.empty() || right.empty()) {
    cut_segments_ = false;
    return;
  }
  const int32_t last = table_.find(last_character(left));
  const int32_t first = table_.find(first_character(right));
  if (last < 0 || first < 0) return;  // such a boundary is never cut, see encode()
  const size_t bit = crossing_bit(last, first);
  crossings_[bit / 64] |= uint64_t{1} << (bit % 64);
}

bool Bpe::may_merge_across(int32_t left, int32_t right) const {
  const size_t bit = crossing_bit(left, right);
  return (crossings_[bit / 64] >> (bit % 64) & 1) != 0;
}

int32_t Bpe::find_character(const char* at, size_t& length) const {
  const uint32_t c = decode_valid(at, length);
  return c < kDirectChars ? char_ids_[c] : table_.find({at, length});
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const {
  if (!cut_segments_) {
    encode_segment(piece, scratch, out);
    return;
  }
  // Where two known characters meet that no merge has on its inner edge, nothing to the left ever
  // joins anything to the right, so that both sides can be encoded by themselves. Models without a
  // pre-tokenizer get their words so.
  size_t begin = 0;
  int32_t last = -1;
  size_t length = 0;
  for (size_t at = 0; at < piece.size(); at += length) {
    const int32_t id = find_character(piece.data() + at, length);
    if (at > begin && last >= 0 && id >= 0 && !may_merge_across(last, id)) {
      encode_segment(piece.substr(begin, at - begin), scratch, out);
      begin = at;
    }
    last = id;
  }
  encode_segment(piece.substr(begin), scratch, out);
}

void Bpe::encode_segment(std::string_view piece, BpeScratch& scratch,
                         std::vector<int32_t>& out) const {
  if (piece.size() > BpeScratch::kCachedBytes) {
    encode_whole(piece, scratch, out);
    return;
  }
  const uint64_t hash = hash_bytes(piece.data(), piece.size());
  BpeScratch::Slot& slot = scratch.cache_[hash % BpeScratch::kCacheSlots];
  const auto tag = static_cast<uint32_t>(hash >> 32);
  if (slot.tag == tag && slot.length == piece.size() &&
      std::memcmp(slot.key, piece.data(), piece.size()) == 0) {
    out.insert(out.end(), slot.ids, slot.ids + slot.count);
    return;
  }
  const size_t before = out.size();
  encode_whole(piece, scratch, out);
  const size_t count = out.size() - before;
  if (count > BpeScratch::kCachedIds) return;
  slot.tag = tag;
  slot.length = static_cast<uint8_t>(piece.size());
  slot.count = static_cast<uint8_t>(count);
  std::memcpy(slot.key, piece.data(), piece.size());
  std::copy(out.begin() + static_cast<ptrdiff_t>(before), out.end(), slot.ids);
}

void Bpe::encode_whole(std::string_view piece, BpeScratch& scratch,
                       std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    const int32_t id = table_.find(piece);
    if (id >= 0) {
      out.push_back(id);
      return;
    }
  }
  scratch.symbols_.clear();
  initial_symbols(piece, scratch.symbols_);
  if (scratch.symbols_.size() <= kShortSymbols) {
    merge_short(scratch, out);
  } else {
    merge_long(scratch, out);
  }
}

void Bpe::initial_symbols(std::string_view piece, std::vector<int32_t>& out) const {
  // An unknown token waits, so that with fuse_unk those in a row become one. Byte tokens do not
  // end the wait: Hugging Face writes them before the unknown token, and so do we.
  bool pending = false;
  const auto add = [&](int32_t id) {
    if (pending) out.push_back(unk_id_);
    pending = false;
    out.push_back(id);
  };
  if (raw_bytes_) {
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) {
        add(id);
      } else {
        add_unknown(map_bytes({&c, 1}), out, pending);
      }
    }
  } else if (prefix_.empty() && suffix_.empty()) {
    size_t length = 0;
    for (size_t at = 0; at < piece.size(); at += length) {
      const int32_t id = find_character(piece.data() + at, length);
      if (id >= 0) {
        add(id);
      } else {
        add_unknown(piece.substr(at, length), out, pending);
      }
    }
  } else {
    std::string spelling;
    size_t length = 0;
    for (size_t at = 0; at < piece.size(); at += length) {
      decode_valid(piece.data() + at, length);
      spelling = at == 0 ? "" : prefix_;
      spelling += piece.substr(at, length);
      if (at + length == piece.size()) spelling += suffix_;
      const int32_t id = table_.find(spelling);
      if (id >= 0) {
        add(id);
      } else {
        add_unknown(spelling, out, pending);
      }
    }
  }
  if (pending) out.push_back(unk_id_);
}

void Bpe::add_unknown(std::string_view character, std::vector<int32_t>& out, bool& pending) const {
  if (byte_fallback_ && std::all_of(character.begin(), character.end(), [this](char c) {
        return fallback_ids_[static_cast<unsigned char>(c)] >= 0;
      })) {
    for (const char c : character) out.push_back(fallback_ids_[static_cast<unsigned char>(c)]);
    return;
  }
  if (unk_id_ < 0) return;  // as Hugging Face: without an unknown token the character is lost
  if (pending && !fuse_unk_) out.push_back(unk_id_);
  pending = true;
}

void Bpe::merge_short(BpeScratch& scratch, std::vector<int32_t>& out) const {
  std::vector<int32_t>& symbols = scratch.symbols_;
  size_t count = symbols.size();
  uint32_t ranks[kShortSymbols];
  int32_t results[kShortSymbols];
  const auto look_up = [&](size_t at) {
    const MergeTable::Found found = merges_.find(symbols[at], symbols[at + 1]);
    ranks[at] = found.rank;
    results[at] = found.result;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == MergeTable::kNoRank) break;
    symbols[best] = results[best];
    --count;
    for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) {
      ranks[i] = ranks[i + 1];
      results[i] = results[i + 1];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  out.insert(out.end(), symbols.begin(), symbols.begin() + static_cast<ptrdiff_t>(count));
}

void Bpe::merge_long(BpeScratch& scratch, std::vector<int32_t>& out) const {
  std::vector<int32_t>& symbols = scratch.symbols_;
  const auto count = static_cast<uint32_t>(symbols.size());
  // Symbols are a linked list; ranks[i] is the rank of the pair that i begins, and the heap holds
  // (rank, place), so that it gives the best pair, of equal ones the leftmost. An entry whose rank
  // is no longer ranks[place] is out of date.
  std::vector<uint32_t>& ranks = scratch.ranks_;
  std::vector<int32_t>& results = scratch.results_;
  std::vector<uint32_t>& next = scratch.next_;
  std::vector<uint32_t>& previous = scratch.previous_;
  std::vector<uint64_t>& heap = scratch.heap_;
  ranks.assign(count, MergeTable::kNoRank);
  results.assign(count, -1);
  next.resize(count);
  previous.resize(count);
  heap.clear();
  const auto look_up = [&](uint32_t at) {
    ranks[at] = MergeTable::kNoRank;
    if (next[at] == kNone) return false;
    const MergeTable::Found found = merges_.find(symbols[at], symbols[next[at]]);
    ranks[at] = found.rank;
    results[at] = found.result;
    return found.rank != MergeTable::kNoRank;
  };
  const auto entry = [&](uint32_t at) { return uint64_t{ranks[at]} << 32 | at; };
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (look_up(i)) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](uint32_t at) {
    if (!look_up(at)) return;
    heap.push_back(entry(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const auto at = static_cast<uint32_t>(heap.front());
    const auto rank = static_cast<uint32_t>(heap.front() >> 32);
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    if (ranks[at] != rank) continue;
    const uint32_t gone = next[at];
    symbols[at] = results[at];
    ranks[gone] = MergeTable::kNoRank;
    next[at] = next[gone];
    if (next[at] != kNone) previous[next[at]] = at;
    update(at);
    if (previous[at] != kNone) update(previous[at]);
  }
  for (uint32_t i = 0; i != kNone; i = next[i]) out.push_back(symbols[i]);
}

}  // namespace tandem::text
