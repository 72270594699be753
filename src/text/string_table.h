// Hash tables of the tokenizer: spelling to id, and pair of ids to merge.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace tandem::text {

inline uint64_t mix_hash(uint64_t value, uint64_t odd) {
  value ^= value >> 32;
  value *= odd;
  value ^= value >> 29;
  value *= 0xBF58476D1CE4E5B9;
  return value ^ value >> 32;
}

/// A hash of bytes; the same on every machine, not secret.
inline uint64_t hash_bytes(const char* data, size_t size) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15;
  constexpr uint64_t kB = 0xD6E8FEB86659FD93;
  uint64_t hash = kA ^ size;
  while (size >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, 8);
    hash = mix_hash(hash ^ word, kB);
    data += 8;
    size -= 8;
  }
  uint64_t rest = 0;
  if (size >= 4) {
    uint32_t low = 0;
    uint32_t high = 0;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + size - 4, 4);
    rest = uint64_t{high} << 32 | low;
  } else if (size > 0) {
    const auto* b = reinterpret_cast<const unsigned char*>(data);
    rest = uint64_t{b[0]} << 16 | uint64_t{b[size / 2]} << 8 | b[size - 1];
  }
  return mix_hash(hash ^ rest, kB);
}

/// Spellings to ids, by open addressing. The spellings are borrowed: whoever owns them must
/// outlive the table and must not move their bytes.
class StringTable {
 public:
  explicit StringTable(size_t expected = 0) { reserve(expected); }

  void reserve(size_t expected) {
    slots_.assign(std::bit_ceil(expected * 2 + 16), Slot{});
    count_ = 0;
  }
  /// False if the spelling is there already.
  bool insert(std::string_view spelling, int32_t id) {
    if (count_ * 2 >= slots_.size()) grow();
    const uint64_t hash = hash_bytes(spelling.data(), spelling.size());
    Slot& slot = slots_[place_of(spelling, hash)];
    if (slot.id >= 0) return false;
    slot = {spelling.data(), static_cast<uint32_t>(spelling.size()), id};
    ++count_;
    return true;
  }
  /// The id, or -1.
  [[nodiscard]] int32_t find(std::string_view spelling) const {
    return slots_[place_of(spelling, hash_bytes(spelling.data(), spelling.size()))].id;
  }

 private:
  struct Slot {
    const char* data = nullptr;
    uint32_t size = 0;
    int32_t id = -1;
  };
  [[nodiscard]] size_t place_of(std::string_view spelling, uint64_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t place = hash & mask;
    while (slots_[place].id >= 0 &&
           std::string_view(slots_[place].data, slots_[place].size) != spelling) {
      place = (place + 1) & mask;
    }
    return place;
  }
  void grow() {
    std::vector<Slot> old;
    old.swap(slots_);
    slots_.assign(old.size() * 2, Slot{});
    for (const Slot& slot : old) {
      if (slot.id < 0) continue;
      slots_[place_of({slot.data, slot.size}, hash_bytes(slot.data, slot.size))] = slot;
    }
  }
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

/// Two adjacent tokens to what they become. A merge's rank is its order of precedence.
class MergeTable {
 public:
  struct Found {
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  void reserve(size_t expected) { slots_.assign(std::bit_ceil(expected * 2 + 16), Slot{}); }
  /// `expected` of reserve() must not be passed. A pair that is there already takes the new rank.
  void insert(int32_t left, int32_t right, uint32_t rank, int32_t result) {
    slots_[place_of(left, right)] = {left, right, rank, result};
  }
  /// The merge, or one of rank kNoRank.
  [[nodiscard]] Found find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[place_of(left, right)];
    return {slot.rank, slot.result};
  }

 private:
  struct Slot {
    int32_t left = -1;
    int32_t right = -1;
    uint32_t rank = kNoRank;
    int32_t result = -1;
  };
  [[nodiscard]] size_t place_of(int32_t left, int32_t right) const {
    const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    const size_t mask = slots_.size() - 1;
    size_t place = mix_hash(key ^ 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93) & mask;
    while (slots_[place].rank != kNoRank &&
           (slots_[place].left != left || slots_[place].right != right)) {
      place = (place + 1) & mask;
    }
    return place;
  }
  std::vector<Slot> slots_;
};

}  // namespace tandem::text
