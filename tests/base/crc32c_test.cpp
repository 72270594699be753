#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace tandem {
namespace {

TEST(Crc32c, HasThePublishedValues) {
  // RFC 3720, B.4, and the check value of the catalogue of CRCs.
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, IsTheSameInPiecesAndWithoutTheInstruction) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> bytes(random() % 200);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    const uint32_t whole = crc32c(bytes);
    EXPECT_EQ(crc32c_portable(bytes), whole);
    const auto cut = static_cast<std::ptrdiff_t>(bytes.empty() ? 0 : random() % bytes.size());
    const std::span<const std::byte> all(bytes);
    const auto first = all.first(static_cast<size_t>(cut));
    const auto rest = all.subspan(static_cast<size_t>(cut));
    EXPECT_EQ(crc32c(rest, crc32c(first)), whole);
    EXPECT_EQ(crc32c_portable(rest, crc32c(first)), whole);
  }
}

}  // namespace
}  // namespace tandem
