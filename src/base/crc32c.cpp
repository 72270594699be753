#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace tandem {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits reversed

/// tables[0] is of one byte; tables[k] of one byte with k zeros after it, so that eight bytes are
/// eight independent look-ups.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = shorter >> 8 ^ tables[0][shorter & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_hardware(std::span<const std::byte> bytes,
                                                           uint32_t crc) {
  uint64_t wide = crc;
  while (bytes.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    wide = _mm_crc32_u64(wide, word);
    bytes = bytes.subspan(8);
  }
  crc = static_cast<uint32_t>(wide);
  for (const std::byte byte : bytes) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(byte));
  return crc;
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#elif defined(__aarch64__)
__attribute__((target("+crc"))) uint32_t crc32c_hardware(std::span<const std::byte> bytes,
                                                         uint32_t crc) {
  while (bytes.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    crc = __crc32cd(crc, word);
    bytes = bytes.subspan(8);
  }
  for (const std::byte byte : bytes) crc = __crc32cb(crc, static_cast<uint8_t>(byte));
  return crc;
}

bool has_instruction() {
  constexpr unsigned long kCrc32 = 1 << 7;  // HWCAP_CRC32
  static const bool has = (::getauxval(AT_HWCAP) & kCrc32) != 0;
  return has;
}
#endif

}  // namespace

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  while (bytes.size() >= 8) {
    uint32_t low = 0;
    uint32_t high = 0;
    std::memcpy(&low, bytes.data(), sizeof low);
    std::memcpy(&high, bytes.data() + 4, sizeof high);
    low ^= crc;
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^
          kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
    bytes = bytes.subspan(8);
  }
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
#if defined(__x86_64__) || defined(__aarch64__)
  if (has_instruction()) return ~crc32c_hardware(bytes, ~before);
#endif
  return crc32c_portable(bytes, before);
}

}  // namespace tandem
