// Unicode 15.0's classes of characters as a table, for builds without ICU. Made by
// tools/unicode_table, compared with ICU for every code point by tests/text/unicode_table_test.cpp.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::text {

/// Further class bits, above those of CharClass.
enum UnicodeBits : uint32_t {
  kClassBits = 255,          ///< CharClass
  kAssignedBit = 1U << 8,    ///< a character of Unicode 15.0
  kNonspacingBit = 1U << 9,  ///< is_nonspacing_mark()
  kWordBit = 1U << 10,       ///< is_word()
};

/// Runs of code points with equal bits, ascending, the first at 0: first << 11 | bits.
std::span<const uint32_t> unicode_runs();

/// Bits of a code point below 0x110000.
uint32_t unicode_bits(uint32_t code_point);

}  // namespace tandem::text
