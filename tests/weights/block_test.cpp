// Block types against a decoder of their own: bit by bit from the layouts, in long double, rounded
// once.
#include "weights/block.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <random>

#include "base/hash.h"
#include "tests/weights/files.h"
#include "weights/checkpoint.h"
#include "weights/dtype.h"

namespace tandem::weights {
namespace {

using Wide = long double;
using Bytes = std::vector<uint8_t>;

Wide half_at(const Bytes& b, size_t at) {
  const unsigned bits = b[at] | b[at + 1] << 8;
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const auto mantissa = static_cast<Wide>(bits & 1023);
  const Wide value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

Wide float_at(const Bytes& b, size_t at) {
  float value = 0;
  std::memcpy(&value, b.data() + at, 4);
  return value;
}

// `width` bits from bit `first` of the bytes on.
int bits_at(const Bytes& b, size_t first, size_t width) {
  int value = 0;
  for (size_t i = 0; i < width; ++i) {
    const size_t bit = first + i;
    value |= (b[bit / 8] >> (bit % 8) & 1) << i;
  }
  return value;
}

// The nibble of element i of 32 that begin at byte `at`.
int nibble(const Bytes& b, size_t at, size_t i) {
  return bits_at(b, (at + i % 16) * 8 + (i < 16 ? 0 : 4), 4);
}

int signed_byte(const Bytes& b, size_t at) {
  return b[at] < 128 ? b[at] : b[at] - 256;
}

constexpr int kNl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Scale and minimum of group g of Q4_K and Q5_K, six bits each.
std::pair<int, int> packed_scales(const Bytes& b, size_t g) {
  const size_t at = 4;
  if (g < 4) return {b[at + g] % 64, b[at + 4 + g] % 64};
  return {b[at + 4 + g] % 16 + b[at + g - 4] / 64 * 16, b[at + 4 + g] / 16 + b[at + g] / 64 * 16};
}

Wide tiny_float(int bits, int exponent_bits, int mantissa_bits, int bias) {
  const int mantissa = bits % (1 << mantissa_bits);
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const Wide sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(Wide(mantissa), 1 - bias - mantissa_bits);
  return sign * std::ldexp(Wide(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
}

// Element i of a block, before it is rounded to binary32.
Wide element(DType dtype, const Bytes& b, size_t i) {
  const size_t half_block = i / 128;
  const size_t within = i % 128;
  switch (dtype) {
    case DType::kQ4_0:
      return half_at(b, 0) * (nibble(b, 2, i) - 8);
    case DType::kQ4_1:
      return half_at(b, 0) * nibble(b, 4, i) + half_at(b, 2);
    case DType::kQ5_0:
      return half_at(b, 0) * (nibble(b, 6, i) + 16 * bits_at(b, 16 + i, 1) - 16);
    case DType::kQ5_1:
      return half_at(b, 0) * (nibble(b, 8, i) + 16 * bits_at(b, 32 + i, 1)) + half_at(b, 2);
    case DType::kQ8_0:
      return half_at(b, 0) * signed_byte(b, 2 + i);
    case DType::kQ2K: {
      const int q = bits_at(b, (16 + half_block * 32 + within % 32) * 8 + within / 32 * 2, 2);
      const int minimum = b[i / 16] / 16;
      return half_at(b, 80) * (b[i / 16] % 16) * q - half_at(b, 82) * minimum;
    }
    case DType::kQ3K: {
      const int q = bits_at(b, (32 + half_block * 32 + within % 32) * 8 + within / 32 * 2, 2);
      const int high = bits_at(b, (i % 32) * 8 + i / 32, 1);
      const size_t g = i / 16;
      const int low = bits_at(b, (96 + g % 8) * 8 + (g < 8 ? 0 : 4), 4);
      const int top = bits_at(b, (104 + g % 4) * 8 + g / 4 * 2, 2);
      return half_at(b, 108) * (low + 16 * top - 32) * (q + 4 * high - 4);
    }
    case DType::kQ4K:
    case DType::kQ5K: {
      const size_t quants = dtype == DType::kQ4K ? 16 : 48;
      const auto [scale, minimum] = packed_scales(b, i / 32);
      int q = bits_at(b, (quants + i / 64 * 32 + i % 32) * 8 + i / 32 % 2 * 4, 4);
      if (dtype == DType::kQ5K) q += 16 * bits_at(b, (16 + i % 32) * 8 + i / 32, 1);
      return half_at(b, 0) * scale * q - half_at(b, 2) * minimum;
    }
    case DType::kQ6K: {
      const size_t quarter = within / 32;
      const int low =
          bits_at(b, (half_block * 64 + quarter % 2 * 32 + i % 32) * 8 + quarter / 2 * 4, 4);
      const int high = bits_at(b, (128 + half_block * 32 + i % 32) * 8 + quarter * 2, 2);
      return half_at(b, 208) * signed_byte(b, 192 + i / 16) * (low + 16 * high - 32);
    }
    case DType::kIq4Nl:
      return half_at(b, 0) * kNl[nibble(b, 2, i)];
    case DType::kIq4Xs: {
      const size_t g = i / 32;
      const int scale = bits_at(b, (4 + g / 2) * 8 + g % 2 * 4, 4) + 16 * bits_at(b, 16 + 2 * g, 2);
      return half_at(b, 0) * (scale - 32) * kNl[nibble(b, 8 + g * 16, i % 32)];
    }
    case DType::kMxfp4:
      return std::ldexp(tiny_float(nibble(b, 1, i), 2, 1, 1), b[0] - 127);
    case DType::kInt4Group:
      return float_at(b, 0) * (nibble(b, 6, i) - static_cast<int16_t>(b[4] | b[5] << 8));
    case DType::kInt8Group:
      return float_at(b, 0) * (signed_byte(b, 6 + i) - static_cast<int16_t>(b[4] | b[5] << 8));
    case DType::kE4m3Group:
      return float_at(b, 0) * tiny_float(b[4 + i], 4, 3, 7);
    case DType::kE5m2Group:
      return float_at(b, 0) * tiny_float(b[4 + i], 5, 2, 15);
    default:
      return 0;
  }
}

class Blocks : public testing::TestWithParam<int> {};

TEST_P(Blocks, WidenAsAnIndependentDecoderDoes) {
  const auto dtype = static_cast<DType>(GetParam());
  const BlockSize block = block_size(dtype);
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  size_t compared = 0;
  for (int round = 0; round < 500; ++round) {
    Bytes bytes(block.bytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    std::vector<float> values(block.elements);
    // Behind a byte of something else: nothing may ask for alignment.
    Bytes moved(bytes.size() + 1);
    std::copy(bytes.begin(), bytes.end(), moved.begin() + 1);
    widen_blocks(dtype, reinterpret_cast<const std::byte*>(moved.data() + 1), values);
    for (uint32_t i = 0; i < block.elements; ++i) {
      if (!std::isfinite(values[i])) continue;  // scales that are no numbers: checked below
      const Wide wanted = element(dtype, bytes, i);
      if (std::fabs(wanted) > 1e38L) continue;
      ASSERT_EQ(values[i], static_cast<float>(wanted))
          << name(dtype) << ", round " << round << ", element " << i;
      ++compared;
    }
  }
  EXPECT_GT(compared, 300U * block.elements);
}

INSTANTIATE_TEST_SUITE_P(Types, Blocks, testing::Range(3, int{kDTypes}), [](const auto& type) {
  std::string id(name(static_cast<DType>(type.param)));
  std::replace(id.begin(), id.end(), ' ', '_');
  return id;
});

TEST(Block, SizesAreThoseOfTheFormats) {
  const uint64_t bits[] = {32, 16, 16, 144, 160, 176, 192, 272};
  for (uint8_t i = 0; i < 8; ++i) {
    EXPECT_EQ(bytes_of(static_cast<DType>(i), 32) * 8, i < 3 ? 32 * bits[i] : bits[i]);
  }
  EXPECT_EQ(bytes_of(DType::kQ6K, 512), 420U);
  EXPECT_FALSE(whole_blocks(DType::kQ4K, 128));
  EXPECT_EQ(tensor_bytes(DType::kQ4K, std::vector<uint64_t>{3, 256}), 432U);
  EXPECT_EQ(tensor_bytes(DType::kQ4K, std::vector<uint64_t>{256, 3}), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::kQ4_0, std::vector<uint64_t>{}), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::kF32, std::vector<uint64_t>{}), 4U);
  EXPECT_EQ(tensor_bytes(DType::kF32, std::vector<uint64_t>{4, 0}), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::kF32, std::vector<uint64_t>{1ULL << 32, 1ULL << 31}), std::nullopt);
  // Fewer bytes than elements: the elements must fit too.
  EXPECT_EQ(tensor_bytes(DType::kQ2K, std::vector<uint64_t>{1ULL << 32, 1ULL << 31}), std::nullopt);
}

TEST(Block, ScalesThatAreNoNumbersAreFound) {
  TensorData tensor;
  std::vector<std::byte> bytes(bytes_of(DType::kQ8_0, 64), std::byte{1});
  bytes[34 + 1] = std::byte{0x7c};  // the second block's scale: 0x7c01
  tensor.info = {"w", DType::kQ8_0, {1, 64}};
  tensor.bytes = bytes;
  const Status status = check_finite(tensor);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "tensor w: element 32 is NaN, expected finite weights");
}

TEST(Block, FilesOfLlamaCppDecodeAsItDecodesThem) {
  std::ifstream list(source_path("tests/data/gguf/decoded_sha256.txt"));
  std::string name;
  std::string wanted;
  size_t compared = 0;
  while (list >> name >> wanted) {
    auto checkpoint = Checkpoint::open(source_path("tests/data/gguf") / (name + ".gguf"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    Sha256 hash;
    for (const TensorInfo& info : (*checkpoint)->tensors()) {
      const auto tensor = (*checkpoint)->read(info.name);
      ASSERT_TRUE(tensor.ok()) << tensor.error().message;
      std::vector<float> values(info.elements());
      ASSERT_TRUE(widen(tensor->info.dtype, tensor->bytes, values).ok());
      hash.update(std::as_bytes(std::span<const float>(values)));
    }
    EXPECT_EQ(hex(hash.digest()), wanted) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 3U);
}

TEST(Blocks, GridsHoldWhatTheBlocksStandFor) {
  std::mt19937 random(5);
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ4K, DType::kInt4Group}) {
    ASSERT_TRUE(has_grids(dtype));
    const BlockSize block = block_size(dtype);
    size_t found = 0;
    for (int round = 0; round < 300; ++round) {
      std::vector<uint8_t> bytes(block.bytes);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      // Scales of either sign but moderate size; a zero point of 0 to 15.
      if (dtype == DType::kInt4Group) {
        const float scale = round % 2 == 0 ? 0.01F : -0.02F;
        std::memcpy(bytes.data(), &scale, 4);
        bytes[4] &= 15;
        bytes[5] = 0;
      } else {
        bytes[1] = static_cast<uint8_t>((bytes[1] & 0x83) | 0x20);
        bytes[3] = static_cast<uint8_t>((bytes[3] & 0x83) | 0x20);
      }
      std::vector<float> values(block.elements);
      widen_blocks(dtype, reinterpret_cast<const std::byte*>(bytes.data()), values);
      std::vector<GroupGrid> grids(block.elements / 32);
      block_grids(dtype, reinterpret_cast<const std::byte*>(bytes.data()), grids);
      for (size_t g = 0; g < grids.size(); ++g) {
        if (!(grids[g].scale > 0) || !(grids[g].minimum >= 0)) continue;
        ++found;
        for (size_t i = g * 32; i < g * 32 + 32; ++i) {
          const float q = (values[i] + grids[g].minimum) / grids[g].scale;
          EXPECT_NEAR(q, std::round(q), 1e-3) << name(dtype);
          EXPECT_GE(std::round(q), 0);
          EXPECT_LE(std::round(q), 15);
        }
      }
    }
    EXPECT_GT(found, 50U) << name(dtype);
  }
  EXPECT_FALSE(has_grids(DType::kIq4Nl) || has_grids(DType::kMxfp4) || has_grids(DType::kQ5_0));
}

}  // namespace
}  // namespace tandem::weights
