// Finds added tokens in text, as the tokenizers library does before anything is encoded.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_spec.h"

namespace tandem::text {

/// A stretch of text: an added token, or what lies between two of them (id -1).
struct Stretch {
  size_t begin;
  size_t end;
  int32_t id;
};

/// Who wrote a text: everybody's marks, or one mark for all of it.
struct Marks {
  const std::string* each = nullptr;  ///< one a byte, or null
  bool all_from_outside = false;      ///< what holds if `each` is null

  [[nodiscard]] bool from_outside(size_t begin, size_t end) const {
    if (each == nullptr) return all_from_outside;
    const size_t found = each->find('\1', begin);
    return found < end;
  }
};

/// A set of added tokens. Immutable and thread-safe.
class AddedTokenMatcher {
 public:
  /// `token.content` is what is looked for. Ids with `control[id]` are found only in bytes that
  /// did not come from outside.
  void add(const AddedToken& token, bool is_control);
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  /// Cuts `text` into stretches that cover it, except for white space that a token takes along.
  /// The leftmost token wins, then the longest.
  void find(std::string_view text, const Marks& marks, std::vector<Stretch>& out) const;

 private:
  struct Entry {
    AddedToken token;
    bool is_control;
  };
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> next;  ///< sorted by byte
    int32_t entry = -1;
  };
  [[nodiscard]] uint32_t step(uint32_t node, unsigned char byte) const;
  [[nodiscard]] int32_t longest(std::string_view text, size_t at, const Marks& marks) const;

  std::vector<Entry> tokens_;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> begins_{};
};

}  // namespace tandem::text
