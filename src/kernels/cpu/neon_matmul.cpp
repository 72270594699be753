// Products of the set neon, for all formats: weights become 16-bit integers, four rows of a column
// in half a vector, and meet the 16-bit activations in smlal, four products an instruction.
//   8 bits:      w + 128 in [1, 255]; sum w x = sum (w + 128) x - 128 * sum x
//   4 and 6 bits: the whole weight, scale * q - 8 minimum and scale * q - 32 scale
// A lane takes one product a column, so its 32-bit sum is widened after as many columns as fit:
//   8 bits: 256 * 255 * 32639 = 2,130,673,920   4 bits: 64 * 945 * 32639 = 1,974,006,720
//   6 bits:  16 * 4064 * 32639 = 2,122,318,336, all below 2^31.
//
// 64 products of a token (16 rows, 4 columns) take 16 smlal and half a load; for all tokens of a
// block together 4 loads, 4 table look-ups and 8 widenings at 8 bits, 2 loads, 4 unpackings, 4
// look-ups, 8 widenings and 8 multiply-adds at 4. Cores without dot products have one pipe for
// multiplications, which the 16 smlal keep busy from two tokens on.
#include "kernels/cpu/neon_matmul.h"

#if defined(__aarch64__)

namespace tandem::kernels::cpu::neon {
namespace {

constexpr uint32_t kPart = 16;  // columns between two looks at the multipliers or high bits

// Columns until a sum is widened.
template <WeightFormat Format>
constexpr uint32_t kWiden = Format == WeightFormat::k8   ? 256
                            : Format == WeightFormat::k4 ? 64
                                                         : 16;

// A group's multipliers, four rows twice in each vector: a weight is scale * q + offset.
struct Multipliers {
  int16x8_t scale[kQuads];
  int16x8_t offset[kQuads];
};

inline void spread(uint8x16_t rows, int16x8_t* quads) {
  const int64x2_t lower = vreinterpretq_s64_u16(vmovl_u8(vget_low_u8(rows)));
  const int64x2_t upper = vreinterpretq_s64_u16(vmovl_high_u8(rows));
  quads[0] = vreinterpretq_s16_s64(vdupq_laneq_s64(lower, 0));
  quads[1] = vreinterpretq_s16_s64(vdupq_laneq_s64(lower, 1));
  quads[2] = vreinterpretq_s16_s64(vdupq_laneq_s64(upper, 0));
  quads[3] = vreinterpretq_s16_s64(vdupq_laneq_s64(upper, 1));
}

// `scales` are those of the group's step.
template <WeightFormat Format>
inline void read_multipliers(const uint8_t* scales, uint32_t group, Multipliers& m) {
  if constexpr (Format == WeightFormat::k4) {
    const uint8x16_t byte = vld1q_u8(scales + group % 2 * kTileRows);
    const uint8x16_t rest = vld1q_u8(scales + 32);
    const uint8x16_t high = group % 2 == 0 ? vshlq_n_u8(rest, 2) : vshrq_n_u8(rest, 2);
    spread(vandq_u8(byte, vdupq_n_u8(63)), m.scale);
    spread(vorrq_u8(vshrq_n_u8(byte, 6), vandq_u8(high, vdupq_n_u8(0x3c))), m.offset);
    for (int q = 0; q < kQuads; ++q) m.offset[q] = vnegq_s16(vshlq_n_s16(m.offset[q], 3));
  } else {
    spread(vld1q_u8(scales + group % 2 * kTileRows), m.scale);
    for (int q = 0; q < kQuads; ++q) m.offset[q] = vnegq_s16(vshlq_n_s16(m.scale[q], 5));
  }
}

// Where the bytes of a tile, or of one of its steps (4 and 6 bits), lie.
struct Tile {
  const uint8_t* low;
  const uint8_t* high;
};

// Quants, or w + 128, of a quad's columns [k, k + 4) and [k + 4, k + 8): bytes [row][column].
template <WeightFormat Format>
inline void unpack(const Tile& tile, size_t k, int quad, uint8x16_t& first, uint8x16_t& second) {
  if constexpr (Format == WeightFormat::k8) {
    first = vld1q_u8(tile.low + k * kTileRows + quad * 16);
    second = vld1q_u8(tile.low + k * kTileRows + 64 + quad * 16);
  } else {
    const uint8x16_t bytes =
        vld1q_u8(tile.low + PackedStep::low_of(Format, k % 64 / 8) + quad * 16);
    first = vandq_u8(bytes, vdupq_n_u8(15));
    second = vshrq_n_u8(bytes, 4);
    if constexpr (Format == WeightFormat::k6) {
      const uint8x16_t bits = vld1q_u8(tile.high + PackedStep::high_of(k % 64 / 8) + quad * 16);
      const uint8x16_t top = vdupq_n_u8(0x30);
      if (k % 16 == 0) {
        first = vorrq_u8(first, vandq_u8(vshlq_n_u8(bits, 4), top));
        second = vorrq_u8(second, vandq_u8(vshlq_n_u8(bits, 2), top));
      } else {
        first = vorrq_u8(first, vandq_u8(bits, top));
        second = vorrq_u8(second, vandq_u8(vshrq_n_u8(bits, 2), top));
      }
    }
  }
}

// Four columns of a quad as 16-bit weights: columns 0 and 1, columns 2 and 3, four rows each.
template <WeightFormat Format>
inline void weights_of(uint8x16_t bytes, const Multipliers& m, int quad, int16x8_t* columns) {
  constexpr uint8_t kTranspose[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const uint8x16_t turned = vqtbl1q_u8(bytes, vld1q_u8(kTranspose));
  columns[0] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(turned)));
  columns[1] = vreinterpretq_s16_u16(vmovl_high_u8(turned));
  if constexpr (Format != WeightFormat::k8) {
    columns[0] = vmlaq_s16(m.offset[quad], columns[0], m.scale[quad]);
    columns[1] = vmlaq_s16(m.offset[quad], columns[1], m.scale[quad]);
  }
}

// sum += four columns times lanes [Lane, Lane + 4) of x.
template <int Lane>
inline int32x4_t add_columns(int32x4_t sum, const int16x8_t* columns, int16x8_t x) {
  sum = vmlal_laneq_s16(sum, vget_low_s16(columns[0]), x, Lane);
  sum = vmlal_high_laneq_s16(sum, columns[0], x, Lane + 1);
  sum = vmlal_laneq_s16(sum, vget_low_s16(columns[1]), x, Lane + 2);
  return vmlal_high_laneq_s16(sum, columns[1], x, Lane + 3);
}

// A lone token has too few sums to keep the multiplier busy: it takes two of each.
template <WeightFormat Format, int Tokens>
void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const uint8_t* ahead) {
  constexpr int kChains = Tokens == 1 ? 2 : 1;
  const size_t padded = o.in.padded;
  const int16_t* x = o.in.values.data() + token * padded;
  const uint8_t* w = o.matrix.tile(tile);
  const auto steps = static_cast<uint32_t>(padded / 64);
  Tile bytes{w, w};
  constexpr size_t kAheadBytes = Format == WeightFormat::k8 ? 16 : 8;  // a column
  Sums total[Tokens][kQuads];
  for (int t = 0; t < Tokens; ++t) {
    for (int q = 0; q < kQuads; ++q) total[t][q] = zero_sums();
  }
  Multipliers m{};
  for (uint32_t begin = 0; begin < padded; begin += kWiden<Format>) {
    const auto end = static_cast<uint32_t>(std::min<size_t>(begin + kWiden<Format>, padded));
    int32x4_t sums[Tokens][kQuads][kChains];
    for (int t = 0; t < Tokens; ++t) {
      for (int q = 0; q < kQuads; ++q) {
        for (int c = 0; c < kChains; ++c) sums[t][q][c] = vdupq_n_s32(0);
      }
    }
    for (uint32_t part = begin; part < end; part += kPart) {
      if constexpr (Format != WeightFormat::k8) {
        if (part % arithmetic::kGroup == 0) {
          const PackedStep place = PackedStep::at(Format, steps, part / 64);
          bytes = {w + place.low, w + place.high};
          read_multipliers<Format>(w + place.scales, part / arithmetic::kGroup, m);
        }
      }
#pragma GCC unroll 2
      for (uint32_t i = 0; i < kPart; i += 8) {
        const size_t k = part + i;
        for (size_t line = 0; line < 8 * kAheadBytes; line += 64) {
          touch(ahead + k * kAheadBytes + line);
        }
        int16x8_t values[Tokens];
#pragma GCC unroll 4
        for (int t = 0; t < Tokens; ++t) values[t] = vld1q_s16(x + t * padded + k);
#pragma GCC unroll 4
        for (int q = 0; q < kQuads; ++q) {
          uint8x16_t first;
          uint8x16_t second;
          unpack<Format>(bytes, k, q, first, second);
          int16x8_t columns[4];
          weights_of<Format>(first, m, q, columns);
          weights_of<Format>(second, m, q, columns + 2);
#pragma GCC unroll 4
          for (int t = 0; t < Tokens; ++t) {
            sums[t][q][0] = add_columns<0>(sums[t][q][0], columns, values[t]);
            int32x4_t& last = sums[t][q][kChains - 1];
            last = add_columns<4>(last, columns + 2, values[t]);
          }
        }
      }
    }
    for (int t = 0; t < Tokens; ++t) {
      for (int q = 0; q < kQuads; ++q) {
        for (int c = 0; c < kChains; ++c) add_sums(total[t][q], sums[t][q][c]);
      }
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    const auto index = token + static_cast<uint32_t>(t);
    for (int q = 0; q < kQuads; ++q) {
      if constexpr (Format == WeightFormat::k8) subtract(total[t][q], 128 * o.in.sums[index]);
      store_quad(o, tile, static_cast<uint32_t>(q), index, total[t][q]);
    }
  }
}

template <WeightFormat Format>
constexpr Block kBlocks[4] = {block<Format, 1>, block<Format, 2>, block<Format, 3>,
                              block<Format, 4>};

}  // namespace

void matmul(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
            uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  switch (matrix.format) {
    case WeightFormat::k8:
      return run_blocks(kBlocks<WeightFormat::k8>, o, tile_begin, tile_end);
    case WeightFormat::k4:
      return run_blocks(kBlocks<WeightFormat::k4>, o, tile_begin, tile_end);
    case WeightFormat::k6:
      return run_blocks(kBlocks<WeightFormat::k6>, o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::neon

#endif
