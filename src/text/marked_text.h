// Text that remembers who wrote it: the model's own template, or somebody outside.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::text {

/// UTF-8 text with one mark a byte: 0 where the chat template's own literals wrote the byte, 1
/// where it came from outside (a message, a tool, an extra variable). A control token is only
/// ever matched in bytes whose marks are all 0, so that what a user types never becomes one.
/// A plain value; as thread-safe as std::string.
class MarkedText {
 public:
  MarkedText() = default;
  /// `text` with every byte marked `from_outside`.
  MarkedText(std::string text, bool from_outside)
      : text_(std::move(text)), marks_(text_.size(), from_outside ? '\1' : '\0') {}

  [[nodiscard]] const std::string& text() const { return text_; }
  /// As many bytes as text(), each 0 or 1.
  [[nodiscard]] const std::string& marks() const { return marks_; }
  [[nodiscard]] size_t size() const { return text_.size(); }
  [[nodiscard]] bool empty() const { return text_.empty(); }
  /// True if any byte of [begin, begin + length) came from outside.
  [[nodiscard]] bool from_outside(size_t begin, size_t length) const {
    const size_t found = marks_.find('\1', begin);
    return found != std::string::npos && found - begin < length;
  }
  [[nodiscard]] bool any_from_outside() const { return marks_.find('\1') != std::string::npos; }

  void append(std::string_view text, bool from_outside) {
    text_.append(text);
    marks_.append(text.size(), from_outside ? '\1' : '\0');
  }
  void append(const MarkedText& other) {
    text_.append(other.text_);
    marks_.append(other.marks_);
  }
  void append(const MarkedText& other, size_t begin, size_t length) {
    text_.append(other.text_, begin, length);
    marks_.append(other.marks_, begin, length);
  }
  [[nodiscard]] MarkedText substr(size_t begin, size_t length = std::string::npos) const {
    MarkedText part;
    part.text_ = text_.substr(begin, length);
    part.marks_ = marks_.substr(begin, length);
    return part;
  }
  /// Cuts the text to its first `length` bytes.
  void truncate(size_t length) {
    text_.resize(length);
    marks_.resize(length);
  }
  void clear() { truncate(0); }
  friend bool operator==(const MarkedText&, const MarkedText&) = default;

 private:
  std::string text_;
  std::string marks_;
};

}  // namespace tandem::text
