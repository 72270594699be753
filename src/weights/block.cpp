#include "weights/block.h"

#include <array>
#include <bit>
#include <cstring>

#include "weights/dtype.h"

namespace tandem::weights {
namespace {

constexpr std::array<float, 16> kIq4{-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::array<float, 16> kFp4{0, 0.5F,  1,  1.5F,  2,  3,  4,  6,
                                     0, -0.5F, -1, -1.5F, -2, -3, -4, -6};

float half(const uint8_t* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return f16_to_f32(bits);
}

float single(const uint8_t* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint32_t word(const uint8_t* at) {
  uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

int16_t signed_half_word(const uint8_t* at) {
  int16_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float small(int value) {
  return static_cast<float>(value);
}

// Types of 32 elements whose nibbles lie as n(i) says: f(element, nibble).
template <typename F>
void nibbles(const uint8_t* bytes, float* w, F f) {
  for (int i = 0; i < 16; ++i) {
    w[i] = f(i, bytes[i] & 15);
    w[i + 16] = f(i + 16, bytes[i] >> 4);
  }
}

void q4_0(const uint8_t* b, float* w) {
  const float d = half(b);
  nibbles(b + 2, w, [d](int, int n) { return d * small(n - 8); });
}

void q4_1(const uint8_t* b, float* w) {
  const float d = half(b);
  const float m = half(b + 2);
  nibbles(b + 4, w, [d, m](int, int n) { return d * small(n) + m; });
}

void q5_0(const uint8_t* b, float* w) {
  const float d = half(b);
  const uint32_t high = word(b + 2);
  nibbles(b + 6, w, [d, high](int i, int n) {
    return d * small((n | static_cast<int>(high >> i & 1) << 4) - 16);
  });
}

void q5_1(const uint8_t* b, float* w) {
  const float d = half(b);
  const float m = half(b + 2);
  const uint32_t high = word(b + 4);
  nibbles(b + 8, w, [d, m, high](int i, int n) {
    return d * small(n | static_cast<int>(high >> i & 1) << 4) + m;
  });
}

void q8_0(const uint8_t* b, float* w) {
  const float d = half(b);
  for (int i = 0; i < 32; ++i) w[i] = d * small(static_cast<int8_t>(b[2 + i]));
}

void iq4_nl(const uint8_t* b, float* w) {
  const float d = half(b);
  nibbles(b + 2, w, [d](int, int n) { return d * kIq4[static_cast<size_t>(n)]; });
}

// 2^(e - 127): binary32 has the exponent itself, but for the two smallest, which are subnormal.
float power(uint8_t e) {
  if (e == 255) return std::bit_cast<float>(0x7fc00000U);
  return e == 0 ? 0x1p-127F : std::bit_cast<float>(uint32_t{e} << 23);
}

void mxfp4(const uint8_t* b, float* w) {
  const float d = power(b[0]);
  nibbles(b + 1, w, [d](int, int n) { return d * kFp4[static_cast<size_t>(n)]; });
}

void q2_k(const uint8_t* b, float* w) {
  const uint8_t* quants = b + 16;
  const float d = half(b + 80);
  const float m = half(b + 82);
  for (int i = 0; i < 256; ++i) {
    const int scale = b[i / 16];
    const int q = quants[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    w[i] = d * small(scale & 15) * small(q) - m * small(scale >> 4);
  }
}

void q3_k(const uint8_t* b, float* w) {
  const uint8_t* quants = b + 32;
  const uint8_t* packed = b + 96;
  const float d = half(b + 108);
  for (int i = 0; i < 256; ++i) {
    const int g = i / 16;
    // Low four bits: nibbles of eight bytes; high two: four to a byte behind them.
    const int low = packed[g % 8] >> (g < 8 ? 0 : 4) & 15;
    const int scale = low | (packed[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
    const int q = quants[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    const int high = b[i % 32] >> (i / 32) & 1;
    w[i] = d * small(scale - 32) * small(q + 4 * high - 4);
  }
}

// Six bits each of the eight scales and minimums of Q4_K and Q5_K.
struct ScaleAndMinimum {
  int scale;
  int minimum;
};
ScaleAndMinimum scale_of(const uint8_t* packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
  return {(packed[group + 4] & 15) | packed[group - 4] >> 6 << 4,
          packed[group + 4] >> 4 | packed[group] >> 6 << 4};
}

// Q4_K and Q5_K: `high` is null or the 32 bytes of fifth bits.
void q45_k(const uint8_t* b, const uint8_t* high, const uint8_t* quants, float* w) {
  const float d = half(b);
  const float m = half(b + 2);
  for (int g = 0; g < 8; ++g) {
    const auto [scale, minimum] = scale_of(b + 4, g);
    const float step = d * small(scale);
    const float offset = m * small(minimum);
    for (int i = 0; i < 32; ++i) {
      int q = quants[g / 2 * 32 + i] >> (g % 2 * 4) & 15;
      if (high != nullptr) q |= (high[i] >> g & 1) << 4;
      w[g * 32 + i] = step * small(q) - offset;
    }
  }
}

void q4_k(const uint8_t* b, float* w) {
  q45_k(b, nullptr, b + 16, w);
}

void q5_k(const uint8_t* b, float* w) {
  q45_k(b, b + 16, b + 48, w);
}

void q6_k(const uint8_t* b, float* w) {
  const float d = half(b + 208);
  for (int half_block = 0; half_block < 2; ++half_block) {
    const uint8_t* low = b + half_block * 64;
    const uint8_t* high = b + 128 + half_block * 32;
    const uint8_t* scales = b + 192 + half_block * 8;
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const int q = (low[quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15) |
                      (high[i] >> (quarter * 2) & 3) << 4;
        const auto scale = static_cast<int8_t>(scales[quarter * 2 + i / 16]);
        w[half_block * 128 + quarter * 32 + i] = d * small(scale) * small(q - 32);
      }
    }
  }
}

void iq4_xs(const uint8_t* b, float* w) {
  const float d = half(b);
  const int high = b[2] | b[3] << 8;
  for (int g = 0; g < 8; ++g) {
    const int scale = (b[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
    const float step = d * small(scale - 32);
    nibbles(b + 8 + g * 16, w + g * 32,
            [step](int, int n) { return step * kIq4[static_cast<size_t>(n)]; });
  }
}

void int4_group(const uint8_t* b, float* w) {
  const float scale = single(b);
  const int zero = signed_half_word(b + 4);
  nibbles(b + 6, w, [scale, zero](int, int n) { return scale * small(n - zero); });
}

void int8_group(const uint8_t* b, float* w) {
  const float scale = single(b);
  const int zero = signed_half_word(b + 4);
  for (int i = 0; i < 32; ++i) w[i] = scale * small(static_cast<int8_t>(b[6 + i]) - zero);
}

template <typename Convert>
std::array<float, 256> table_of(Convert convert) {
  std::array<float, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) table[i] = convert(static_cast<uint8_t>(i));
  return table;
}

void e4m3_group(const uint8_t* b, float* w) {
  static const std::array<float, 256> kTable = table_of(e4m3_to_f32);
  const float scale = single(b);
  for (int i = 0; i < 32; ++i) w[i] = scale * kTable[b[4 + i]];
}

void e5m2_group(const uint8_t* b, float* w) {
  static const std::array<float, 256> kTable = table_of(e5m2_to_f32);
  const float scale = single(b);
  for (int i = 0; i < 32; ++i) w[i] = scale * kTable[b[4 + i]];
}

template <void (*kWiden)(const uint8_t*, float*)>
void run(BlockSize block, const std::byte* bytes, std::span<float> values) {
  const auto* at = reinterpret_cast<const uint8_t*>(bytes);
  for (size_t i = 0; i < values.size(); i += block.elements, at += block.bytes) {
    kWiden(at, values.data() + i);
  }
}

// d * (n - zero) with d of either sign: counted from the end where q is 0.
GroupGrid centred(float d, float zero) {
  return d < 0 ? GroupGrid{-d, -d * (15.0F - zero)} : GroupGrid{d, d * zero};
}

}  // namespace

bool has_grids(DType dtype) {
  return dtype == DType::kQ4_0 || dtype == DType::kQ4_1 || dtype == DType::kQ4K ||
         dtype == DType::kInt4Group;
}

void block_grids(DType dtype, const std::byte* bytes, std::span<GroupGrid> grids) {
  const BlockSize block = block_size(dtype);
  const uint32_t groups = block.elements / 32;
  const auto* at = reinterpret_cast<const uint8_t*>(bytes);
  for (size_t i = 0; i < grids.size(); i += groups, at += block.bytes) {
    const float d = dtype == DType::kInt4Group ? single(at) : half(at);
    if (dtype == DType::kQ4_0) {
      grids[i] = centred(d, 8.0F);
    } else if (dtype == DType::kInt4Group) {
      grids[i] = centred(d, small(signed_half_word(at + 4)));
    } else if (dtype == DType::kQ4_1) {
      const float m = half(at + 2);
      grids[i] = d < 0 ? GroupGrid{-d, -d * 15.0F - m} : GroupGrid{d, -m};
    } else {
      const float m = half(at + 2);
      for (uint32_t g = 0; g < groups; ++g) {
        const auto [scale, minimum] = scale_of(at + 4, static_cast<int>(g));
        grids[i + g] = {d * small(scale), m * small(minimum)};
      }
    }
  }
}

float e4m3_to_f32(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000U);
  if (exponent == 0) return sign * small(mantissa) * 0x1p-9F;
  return sign * small(8 + mantissa) * power(static_cast<uint8_t>(exponent + 127 - 10));
}

float e5m2_to_f32(uint8_t bits) {
  return f16_to_f32(static_cast<uint16_t>(bits << 8));
}

void widen_blocks(DType dtype, const std::byte* bytes, std::span<float> values) {
  const BlockSize block = block_size(dtype);
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return;
    case DType::kQ4_0:
      return run<q4_0>(block, bytes, values);
    case DType::kQ4_1:
      return run<q4_1>(block, bytes, values);
    case DType::kQ5_0:
      return run<q5_0>(block, bytes, values);
    case DType::kQ5_1:
      return run<q5_1>(block, bytes, values);
    case DType::kQ8_0:
      return run<q8_0>(block, bytes, values);
    case DType::kQ2K:
      return run<q2_k>(block, bytes, values);
    case DType::kQ3K:
      return run<q3_k>(block, bytes, values);
    case DType::kQ4K:
      return run<q4_k>(block, bytes, values);
    case DType::kQ5K:
      return run<q5_k>(block, bytes, values);
    case DType::kQ6K:
      return run<q6_k>(block, bytes, values);
    case DType::kIq4Nl:
      return run<iq4_nl>(block, bytes, values);
    case DType::kIq4Xs:
      return run<iq4_xs>(block, bytes, values);
    case DType::kMxfp4:
      return run<mxfp4>(block, bytes, values);
    case DType::kInt4Group:
      return run<int4_group>(block, bytes, values);
    case DType::kInt8Group:
      return run<int8_group>(block, bytes, values);
    case DType::kE4m3Group:
      return run<e4m3_group>(block, bytes, values);
    case DType::kE5m2Group:
      return run<e5m2_group>(block, bytes, values);
  }
}

}  // namespace tandem::weights
