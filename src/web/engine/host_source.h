// Tensors of safetensors files that the host reads for the module: a file on a disk, a blob, or
// bytes that came from a peer. Only one tensor at a time is in the module's memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "weights/source.h"

namespace tandem::web {

/// Not thread-safe: the host's read function belongs to the engine's thread.
class HostSource final : public weights::TensorSource {
 public:
  /// Reads the header of a file of `size` bytes that the host knows as `file`. Its tensors must not
  /// be in another file already. Errors: kInvalid, kUnsupported, kIo, kMemory.
  Status add(uint32_t file, uint64_t size);

  [[nodiscard]] const weights::TensorInfo* find(std::string_view tensor) const override;
  [[nodiscard]] Result<weights::TensorData> read(std::string_view tensor) override;

 private:
  struct Entry {
    weights::TensorInfo info;
    uint32_t file = 0;
    uint64_t offset = 0;
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace tandem::web
