// Memory that streams through a kernel: owned, or borrowed from whoever keeps it alive.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace tandem {

/// Zeroed bytes at a 64-byte boundary, in huge pages if they are many and the system has them
/// (decoding then reads about a sixth faster). Pages come into being when they are touched, near
/// the core that touches them. Null if memory is exhausted.
std::shared_ptr<void> allocate_zeroed(size_t bytes);

/// The same in a mapping of its own, which goes with it, whatever its size: for what comes and goes
/// beside weights that stay.
std::shared_ptr<void> allocate_pages(size_t bytes);

/// A fixed number of elements at a 64-byte boundary. Move-only; share() gives another view of the
/// same elements. T must be trivial.
template <typename T>
class Block {
  static_assert(std::is_trivial_v<T>);

 public:
  Block() = default;
  /// Zeroed elements of its own. On exhausted memory the block is empty although count > 0.
  explicit Block(size_t count) {
    if (count == 0) return;
    std::shared_ptr<void> memory = allocate_zeroed(count * sizeof(T));
    if (memory == nullptr) return;
    data_ = static_cast<T*>(memory.get());
    size_ = count;
    owner_ = std::move(memory);
  }
  /// Elements that `owner` keeps alive and that nobody writes to: the non-const members must not
  /// be used on such a block.
  Block(std::span<const T> elements, std::shared_ptr<const void> owner)
      : data_(const_cast<T*>(elements.data())), size_(elements.size()), owner_(std::move(owner)) {}

  Block(Block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        owner_(std::move(other.owner_)) {}
  Block& operator=(Block&& other) noexcept {
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    owner_ = std::move(other.owner_);
    return *this;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() = default;

  /// The same elements again, to be read only; they live as long as one of the two does.
  [[nodiscard]] Block share() const { return Block({data_, size_}, owner_); }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  [[nodiscard]] const T* begin() const { return data_; }
  [[nodiscard]] const T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<const void> owner_;
};

}  // namespace tandem
