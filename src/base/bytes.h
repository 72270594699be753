// Bounded reading and writing of little-endian bytes: the only way that a length from outside
// becomes a pointer.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tandem {

static_assert(std::endian::native == std::endian::little, "Tandem's formats are little-endian");

/// Reads values off the front of borrowed bytes. The first read past the end makes the reader
/// fail: from then on `ok()` is false and every read gives zero or nothing. Check `ok()` once at
/// the end, before anything that was read is used.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T read() {
    T value{};
    const auto part = take(sizeof(T));
    if (part.size() == sizeof(T)) std::memcpy(&value, part.data(), sizeof(T));
    return value;
  }
  /// The next `count` bytes, borrowed; empty and failed if there are fewer.
  std::span<const std::byte> take(uint64_t count) {
    if (failed_ || count > bytes_.size()) {
      failed_ = true;
      return {};
    }
    const auto part = bytes_.first(static_cast<size_t>(count));
    bytes_ = bytes_.subspan(static_cast<size_t>(count));
    return part;
  }
  /// A string with a 32-bit length before it; fails if the length is over `limit`.
  std::string_view text(uint32_t limit) {
    const auto length = read<uint32_t>();
    if (length > limit) {
      failed_ = true;
      return {};
    }
    const auto part = take(length);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  [[nodiscard]] size_t remaining() const { return bytes_.size(); }
  [[nodiscard]] bool ok() const { return !failed_; }
  /// True if everything was read and nothing failed.
  [[nodiscard]] bool finished() const { return !failed_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool failed_ = false;
};

/// Appends values to a byte vector.
class ByteWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void write(T value) { append(std::as_bytes(std::span(&value, 1))); }
  // Not inlined: g++ 12 then warns of an overflow that can't happen.
  [[gnu::noinline]] void append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void text(std::string_view value) {
    write(static_cast<uint32_t>(value.size()));
    append(std::as_bytes(std::span(value.data(), value.size())));
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> release() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace tandem
