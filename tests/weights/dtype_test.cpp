#include "weights/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tandem::weights {
namespace {

/// What IEEE 754 says a binary16 is worth, by its definition.
double f16_value(uint16_t bits) {
  const int sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Widen, GivesEveryFiniteF16ItsExactValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    ASSERT_EQ(static_cast<double>(value), f16_value(static_cast<uint16_t>(bits))) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
  }
}

TEST(Widen, KeepsInfinitiesAndNaNsOfF16) {
  EXPECT_EQ(f16_to_f32(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16_to_f32(0xfc00), -std::numeric_limits<float>::infinity());
  for (uint32_t payload = 1; payload < 1024; ++payload) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const auto bits = static_cast<uint16_t>(sign | 0x7c00u | payload);
      ASSERT_EQ(std::bit_cast<uint32_t>(f16_to_f32(bits)),
                sign << 16 | 0x7f800000u | payload << 13);
    }
  }
}

TEST(Widen, PutsBf16IntoTheUpperHalf) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16_to_f32(static_cast<uint16_t>(bits))), bits << 16);
  }
}

TEST(Narrow, RoundsToTheNearestBf16AndTiesToEven) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);             // half-way, down to even
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);  // above half-way
  EXPECT_EQ(f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);         // half-way, up to even
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-0.0f), 0x8000);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7fff) > 0x7f80) continue;
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(static_cast<uint16_t>(bits))), bits);
  }
}

TEST(Widen, ConvertsSpansOfAnyLengthAndAlignment) {
  std::vector<std::byte> storage(4 * 70 + 1);
  for (size_t i = 0; i < storage.size(); ++i) storage[i] = static_cast<std::byte>(i * 37);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (size_t start : {0, 1}) {
      for (size_t count = 0; count < 70; ++count) {
        const auto bytes =
            std::span<const std::byte>(storage).subspan(start, count * bytes_of(dtype, 1));
        std::vector<float> values(count);
        ASSERT_TRUE(widen(dtype, bytes, values).ok());
        for (size_t i = 0; i < count; ++i) {
          uint32_t bits = 0;
          std::memcpy(&bits, bytes.data() + i * bytes_of(dtype, 1), bytes_of(dtype, 1));
          const float expected = dtype == DType::kF32   ? std::bit_cast<float>(bits)
                                 : dtype == DType::kF16 ? f16_to_f32(static_cast<uint16_t>(bits))
                                                        : bf16_to_f32(static_cast<uint16_t>(bits));
          ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected));
        }
      }
    }
  }
}

TEST(Widen, RefusesSizesThatDoNotFit) {
  const std::vector<std::byte> bytes(7);
  std::vector<float> values(3);
  const Status status = widen(DType::kBF16, bytes, values);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "expected 6 bytes for 3 elements of BF16, found 7");
}

template <typename Bits>
TensorData tensor(DType dtype, const std::vector<Bits>& elements) {
  return {{"w", dtype, {elements.size()}}, std::as_bytes(std::span(elements)), nullptr};
}

TEST(CheckFinite, NamesTheTensorAndTheFirstBadElement) {
  std::vector<uint16_t> bf16(10'000, 0x7f7f);  // the largest finite value
  EXPECT_TRUE(check_finite(tensor(DType::kBF16, bf16)).ok());
  bf16[9'000] = 0xff80;
  bf16[9'001] = 0x7fc0;
  EXPECT_EQ(check_finite(tensor(DType::kBF16, bf16)).error().message,
            "tensor w: element 9000 is -infinity, expected finite weights");

  std::vector<uint16_t> f16(100, 0x7bff);
  EXPECT_TRUE(check_finite(tensor(DType::kF16, f16)).ok());
  f16[99] = 0x7c01;
  EXPECT_EQ(check_finite(tensor(DType::kF16, f16)).error().message,
            "tensor w: element 99 is NaN, expected finite weights");

  std::vector<uint32_t> f32(5000, 0xff7fffff);
  EXPECT_TRUE(check_finite(tensor(DType::kF32, f32)).ok());
  f32[0] = 0x7f800000;
  EXPECT_EQ(check_finite(tensor(DType::kF32, f32)).error().message,
            "tensor w: element 0 is infinity, expected finite weights");
  EXPECT_TRUE(check_finite(tensor<uint32_t>(DType::kF32, {})).ok());
}

}  // namespace
}  // namespace tandem::weights
