// What the 4- and 6-bit products of the sets dotprod and i8mm share. With x = 256 * high + low,
//   4 bits: sum w x = sum over groups of scale * (256 * sum q high + sum q low) - 8 minimum * sum x
//   6 bits: the same with the signed byte 4 (q - 32) for q, no minimum, and a quarter of the
//   result.
// At 6 bits a group's plane sum is at most 32 * 128 * 128, times a scale of at most 127: 32 groups
// add up to at most 2,130,706,432 < 2^31. At 4 bits it is at most 32 * 15 * 128, times 63: 128
// groups add up to 495,452,160. Sums are widened after that many.
#pragma once

#if defined(__aarch64__)

#include "kernels/cpu/neon_matmul.h"

namespace tandem::kernels::cpu::neon {
namespace {

inline constexpr size_t kStepX = 128;  // of planes for 64 columns
// Steps of 64 columns until a sum is widened.
template <WeightFormat Format>
inline constexpr uint32_t kSegment = Format == WeightFormat::k4 ? 64 : 16;

// A part of a tile: its quads from `quad` on.
struct PackedPart {
  struct Step {
    const uint8_t* low;     // [chunk of 8 columns][64 bytes]
    const uint8_t* high;    // 6 bits: [2 chunks][64 bytes]
    const uint8_t* scales;  // from the part's first row on
  };

  const uint8_t* tile;
  uint32_t steps;
  uint32_t quad;

  PackedPart(const PackedMatrix& matrix, uint32_t index, uint32_t first_quad)
      : tile(matrix.tile(index)),
        steps(padded_columns(matrix.columns) / kColumnPad),
        quad(first_quad) {}

  template <WeightFormat Format>
  [[nodiscard]] Step step(size_t index) const {
    const PackedStep place = PackedStep::at(Format, steps, index);
    const uint8_t* values = tile + size_t{quad} * 16;
    return {values + place.low, values + place.high, tile + place.scales + size_t{quad} * 4};
  }
};

// A byte a row of a part; no byte past its rows is read.
template <int Quads>
inline uint8x16_t load_rows(const uint8_t* bytes) {
  if constexpr (Quads == kQuads) {
    return vld1q_u8(bytes);
  } else {
    static_assert(Quads == 2);
    return vcombine_u8(vld1_u8(bytes), vdup_n_u8(0));
  }
}

template <WeightFormat Format, int Quads>
inline uint8x16_t load_scales(const uint8_t* scales, size_t group) {
  if constexpr (Format == WeightFormat::k4) {
    return vandq_u8(load_rows<Quads>(scales + group * kTileRows), vdupq_n_u8(63));
  } else {
    return load_rows<Quads>(scales + group * kTileRows);
  }
}

// The bytes of `Vectors` vectors of four as 32-bit integers.
template <int Vectors>
inline void widen(uint8x16_t bytes, int32x4_t* vectors) {
  const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)};
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    const uint16x8_t half = halves[v / 2];
    vectors[v] =
        vreinterpretq_s32_u32(v % 2 == 0 ? vmovl_u16(vget_low_u16(half)) : vmovl_high_u16(half));
  }
}

// Quants of a quad of a chunk, at 6 bits 4 (q - 32): its columns 0 to 3 and 4 to 7, bytes
// [row][column].
template <WeightFormat Format>
inline void unpack(const uint8_t* low, const uint8_t* high, size_t chunk, int8x16_t& first,
                   int8x16_t& second) {
  const uint8x16_t bytes = vld1q_u8(low);
  uint8x16_t lower;
  uint8x16_t upper;
  if constexpr (Format == WeightFormat::k4) {
    lower = vandq_u8(bytes, vdupq_n_u8(15));
    upper = vshrq_n_u8(bytes, 4);
  } else {
    // Six bits at the top of a byte: two inserted above or kept from the high bits, four below;
    // then turning the top bit subtracts 32 quants.
    const uint8x16_t bits = vld1q_u8(high);
    if (chunk % 2 == 0) {
      lower = vsliq_n_u8(vshlq_n_u8(bytes, 2), bits, 6);
      upper = vsriq_n_u8(vshlq_n_u8(bits, 4), bytes, 2);
    } else {
      lower = vsriq_n_u8(vshlq_n_u8(bits, 2), vshlq_n_u8(bytes, 4), 2);
      upper = vsriq_n_u8(bits, bytes, 2);
    }
    lower = veorq_u8(lower, vdupq_n_u8(0x80));
    upper = veorq_u8(vandq_u8(upper, vdupq_n_u8(0xfc)), vdupq_n_u8(0x80));
  }
  first = vreinterpretq_s8_u8(lower);
  second = vreinterpretq_s8_u8(upper);
}

// Where the tokens of a block lie.
struct Prepared {
  const uint8_t* planes;
  const uint8_t* group_sums;
  size_t token_bytes;

  Prepared(const ActivationView& in, uint32_t token)
      : planes(in.prepared.data() + token * planes_bytes(in.padded)),
        group_sums(planes + size_t{in.padded} * 2),
        token_bytes(planes_bytes(in.padded)) {}
};

// total = - sum over groups of 8 minimum * sum x, at 4 bits: a 32-bit product a row and group. Sums
// are widened every 32 groups: 32 * 63 * 32 * 32639 = 2,105,607,168 < 2^31.
template <WeightFormat Format, int Tokens, int Quads>
inline void start_totals(const PackedPart& part, const Prepared& x, uint32_t steps,
                         Sums (*total)[Quads]) {
  constexpr uint32_t kWiden = 16;  // steps
  for (int t = 0; t < Tokens; ++t) {
    for (int q = 0; q < Quads; ++q) total[t][q] = zero_sums();
  }
  if constexpr (Format == WeightFormat::k6) return;
  for (uint32_t begin = 0; begin < steps; begin += kWiden) {
    const uint32_t end = std::min(begin + kWiden, steps);
    int32x4_t sums[Tokens][Quads];
    for (int t = 0; t < Tokens; ++t) {
      for (int q = 0; q < Quads; ++q) sums[t][q] = vdupq_n_s32(0);
    }
    for (size_t step = begin; step < end; ++step) {
      const uint8_t* own = part.step<Format>(step).scales;
      const uint8x16_t rest = load_rows<Quads>(own + 2 * kTileRows);
      const uint8x16_t high[2] = {vshlq_n_u8(rest, 2), vshrq_n_u8(rest, 2)};
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        const uint8x16_t byte = load_rows<Quads>(own + g * kTileRows);
        int32x4_t minimum[Quads];
        widen<Quads>(vorrq_u8(vshrq_n_u8(byte, 6), vandq_u8(high[g], vdupq_n_u8(0x3c))), minimum);
#pragma GCC unroll 8
        for (int t = 0; t < Tokens; ++t) {
          const uint8_t* sum = x.group_sums + t * x.token_bytes + (step * 2 + g) * sizeof(int32_t);
          const int32x4_t group = vld1q_dup_s32(reinterpret_cast<const int32_t*>(sum));
#pragma GCC unroll 4
          for (int q = 0; q < Quads; ++q) {
            sums[t][q] = vmlaq_s32(sums[t][q], minimum[q], group);
          }
        }
      }
    }
    for (int t = 0; t < Tokens; ++t) {
      for (int q = 0; q < Quads; ++q) add_sums(total[t][q], sums[t][q]);
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    for (int q = 0; q < Quads; ++q) {
      total[t][q].first = vnegq_s64(vshlq_n_s64(total[t][q].first, 3));
      total[t][q].second = vnegq_s64(vshlq_n_s64(total[t][q].second, 3));
    }
  }
}

// Results of a part from its totals.
template <WeightFormat Format, int Tokens, int Quads>
inline void store_totals(const MatmulOutput& o, uint32_t tile, uint32_t quad, uint32_t token,
                         Sums (*total)[Quads]) {
  for (int t = 0; t < Tokens; ++t) {
    for (int q = 0; q < Quads; ++q) {
      if constexpr (Format == WeightFormat::k6) {
        total[t][q].first = vshrq_n_s64(total[t][q].first, 2);
        total[t][q].second = vshrq_n_s64(total[t][q].second, 2);
      }
      store_quad(o, tile, quad + static_cast<uint32_t>(q), token + static_cast<uint32_t>(t),
                 total[t][q]);
    }
  }
}

}  // namespace
}  // namespace tandem::kernels::cpu::neon

#endif
