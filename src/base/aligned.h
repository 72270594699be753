// Memory aligned for vector loads, zeroed when made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace tandem {

/// A fixed number of zeroed elements at a 64-byte boundary. Move-only. T must be trivial.
template <typename T>
class AlignedArray {
 public:
  static constexpr size_t kAlignment = 64;

  AlignedArray() = default;
  /// Throws nothing: on exhausted memory the array is empty although count > 0. The count may be
  /// more than a pointer could reach (WebAssembly has 32 bits): that is too much as well.
  explicit AlignedArray(uint64_t count) {
    if (count == 0 || count > SIZE_MAX / 2 / sizeof(T)) return;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    void* memory = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (memory == nullptr) return;
    std::memset(memory, 0, bytes);
    data_.reset(static_cast<T*>(memory));
    size_ = static_cast<size_t>(count);
  }

  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  struct Free {
    void operator()(T* memory) const { ::operator delete (memory, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t size_ = 0;
};

}  // namespace tandem
