// SHA-256 (FIPS 180-4) without a library: what hash.h uses where there is no OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

/// Incremental; any number of update() calls, then one finish(). Not thread-safe.
class PortableSha256 {
 public:
  void update(std::span<const std::byte> bytes);
  /// The digest; the object may only be destroyed afterwards.
  std::array<uint8_t, 32> finish();

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t length_ = 0;                   ///< bytes so far
  std::array<uint8_t, 64> unfinished_{};  ///< the last length_ % 64 of them
};

}  // namespace tandem
