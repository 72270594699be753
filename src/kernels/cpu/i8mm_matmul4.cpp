// Products of 4- and 6-bit weights with smmla, group by group: two rows of eight quants times the
// low and the high plane of eight activations, four sums of eight products an instruction.
// neon_matmul4.h has the formulas and bounds.
//
// A group of 16 rows, 512 products of a token, takes 32 smmla (4 for 64 products) and 8
// multiply-adds by the scale, at 4 bits 4 more for the minimum; unpacking takes 4 instructions for
// 32 weights at 4 bits and 9 at 6, shared by a block's tokens.
#include "kernels/cpu/neon_matmul4.h"

#if defined(__aarch64__)

namespace tandem::kernels::cpu::neon {
namespace {

// Sums of a pair of rows are [row 0 low, high, row 1 low, high], and scales accordingly.
template <int Quads>
inline void widen_pairs(uint8x16_t scales, int32x4_t* pairs) {
  widen<4>(vzip1q_u8(scales, scales), pairs);
  if constexpr (Quads == kQuads) widen<4>(vzip2q_u8(scales, scales), pairs + 4);
}

template <WeightFormat Format, int Tokens, int Quads>
TANDEM_I8MM void part(const MatmulOutput& o, uint32_t tile, uint32_t quad, uint32_t token,
                      const uint8_t* ahead) {
  constexpr int kPairs = 2 * Quads;
  const PackedPart w(o.matrix, tile, quad);
  const Prepared x(o.in, token);
  const uint32_t steps = o.in.padded / 64;
  Sums total[Tokens][Quads];
  start_totals<Format, Tokens, Quads>(w, x, steps, total);
  for (uint32_t begin = 0; begin < steps; begin += kSegment<Format>) {
    const uint32_t end = std::min(begin + kSegment<Format>, steps);
    int32x4_t sums[Tokens][kPairs];
    for (int t = 0; t < Tokens; ++t) {
      for (int p = 0; p < kPairs; ++p) sums[t][p] = vdupq_n_s32(0);
    }
    for (size_t step = begin; step < end; ++step) {
      const PackedPart::Step bytes = w.step<Format>(step);
      const uint8_t* soon = ahead + (bytes.low - w.tile);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        int32x4_t group[Tokens][kPairs];
#pragma GCC unroll 4
        for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 8
          for (int p = 0; p < kPairs; ++p) group[t][p] = vdupq_n_s32(0);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          const size_t chunk = static_cast<size_t>(g) * 4 + static_cast<size_t>(c);
          if (quad == 0) touch(soon + PackedStep::low_of(Format, chunk));
          int8x16_t pairs[kPairs];
#pragma GCC unroll 4
          for (int q = 0; q < Quads; ++q) {
            int8x16_t first;
            int8x16_t second;
            unpack<Format>(bytes.low + PackedStep::low_of(Format, chunk) + q * 16,
                           bytes.high + PackedStep::high_of(chunk) + q * 16, chunk, first, second);
            const int32x4_t a = vreinterpretq_s32_s8(first);
            const int32x4_t b = vreinterpretq_s32_s8(second);
            pairs[2 * q] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
            pairs[2 * q + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
          }
#pragma GCC unroll 4
          for (int t = 0; t < Tokens; ++t) {
            const int8x16_t planes =
                load_signed(x.planes + t * x.token_bytes + step * kStepX + chunk * 16);
#pragma GCC unroll 8
            for (int p = 0; p < kPairs; ++p) {
              group[t][p] = vmmlaq_s32(group[t][p], pairs[p], planes);
            }
          }
        }
        int32x4_t scale[kPairs];
        widen_pairs<Quads>(load_scales<Format, Quads>(bytes.scales, static_cast<size_t>(g)), scale);
#pragma GCC unroll 4
        for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 8
          for (int p = 0; p < kPairs; ++p) {
            sums[t][p] = vmlaq_s32(sums[t][p], group[t][p], scale[p]);
          }
        }
      }
    }
    for (int t = 0; t < Tokens; ++t) {
      for (int q = 0; q < Quads; ++q) {
        const int32x4_t first = sums[t][2 * q];
        const int32x4_t second = sums[t][2 * q + 1];
        add_planes(total[t][q], vuzp1q_s32(first, second), vuzp2q_s32(first, second));
      }
    }
  }
  store_totals<Format, Tokens, Quads>(o, tile, quad, token, total);
}

// A lone token takes the whole tile, more of them half of it at a time. More than four would save
// little: the sums over groups leave the registers, and are loaded and stored once a group.
template <WeightFormat Format, int Tokens>
void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const uint8_t* ahead) {
  if constexpr (Tokens == 1) {
    part<Format, Tokens, 4>(o, tile, 0, token, ahead);
  } else {
    part<Format, Tokens, 2>(o, tile, 0, token, ahead);
    part<Format, Tokens, 2>(o, tile, 2, token, ahead);
  }
}

template <WeightFormat Format>
constexpr Block kBlocks[4] = {block<Format, 1>, block<Format, 2>, block<Format, 3>,
                              block<Format, 4>};

}  // namespace

void i8mm_matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                  uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  if (matrix.format == WeightFormat::k4) {
    run_blocks(kBlocks<WeightFormat::k4>, o, tile_begin, tile_end);
  } else {
    run_blocks(kBlocks<WeightFormat::k6>, o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::neon

#endif
