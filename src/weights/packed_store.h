// Where quantized weights are kept between starts, as loading sees it: on disk natively
// (PackedCache), nowhere yet in a browser.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/thread_pool.h"
#include "kernels/packed.h"
#include "weights/packed_file.h"

namespace tandem::weights {

/// Thread-safe.
class PackedStore {
 public:
  PackedStore() = default;
  PackedStore(const PackedStore&) = delete;
  PackedStore& operator=(const PackedStore&) = delete;
  virtual ~PackedStore() = default;

  /// The matrices stored under `key`, if they are there, sound, and of these shapes.
  virtual std::optional<std::vector<kernels::PackedMatrix>> load(
      const Digest& key, std::span<const PackedShape> shapes, ThreadPool& pool) = 0;
  /// As load(), but only the header is read: the matrices are `on_demand`.
  virtual std::optional<std::vector<kernels::PackedMatrix>> load_on_demand(
      const Digest& /*key*/, std::span<const PackedShape> /*shapes*/) {
    return std::nullopt;
  }
  /// Stores matrices at once, for a caller that then drops them. The error says why it can't.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): taken over
  virtual Status store_now(const Digest& /*key*/, std::vector<kernels::PackedMatrix> /*matrices*/) {
    return unsupported("there is nowhere to keep quantized weights");
  }
  /// Stores matrices that nobody writes to any more, later. They are not copied.
  virtual void store(const Digest& key, std::vector<kernels::PackedMatrix> matrices) = 0;
  /// Bytes of the entry of that key, 0 if there is none. It is not checked.
  [[nodiscard]] virtual uint64_t size_of(const Digest& key) const = 0;
};

}  // namespace tandem::weights
