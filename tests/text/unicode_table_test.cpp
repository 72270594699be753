// The table of builds without ICU against ICU, for every code point there is.
#include "text/unicode_table.h"

#include <gtest/gtest.h>

#include "text/unicode.h"

namespace tandem::text {
namespace {

TEST(UnicodeTable, EqualsIcuForEveryCodePoint) {
  ASSERT_FALSE(unicode_runs().empty());
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const uint32_t bits = unicode_bits(c);
    ASSERT_EQ(bits & kClassBits, CharClasses::get().of(c)) << c;
    ASSERT_EQ((bits & kAssignedBit) != 0, is_assigned_by(c, 15)) << c;
    ASSERT_EQ((bits & kNonspacingBit) != 0, is_nonspacing_mark(c)) << c;
    ASSERT_EQ((bits & kWordBit) != 0, is_word(c)) << c;
  }
}

}  // namespace
}  // namespace tandem::text
