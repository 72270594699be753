// CRC-32C (Castagnoli): finds all errors of up to three bits in messages of less than 256 MB, any
// burst of up to 32, and all but one in 4 billion of the others. Not proof against intent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

/// The CRC of `bytes` after those whose CRC is `before`; 0 is that of nothing. With the processor's
/// own instruction where there is one.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
/// The same without it, for comparison.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace tandem
