// Products of 4- and 6-bit weights with sdot, group by group; neon_matmul4.h has the formulas and
// bounds.
//
// A group of 16 rows, 512 products of a token, takes 64 sdot (8 for 64 products) and 8
// multiply-adds by the scale, at 4 bits 4 more for the minimum; unpacking takes 2 instructions for
// 32 weights at 4 bits and 7 at 6, shared by a block's tokens.
#include "kernels/cpu/neon_matmul4.h"

#if defined(__aarch64__)

namespace tandem::kernels::cpu::neon {
namespace {

template <WeightFormat Format, int Tokens, int Quads>
TANDEM_DOTPROD void part(const MatmulOutput& o, uint32_t tile, uint32_t quad, uint32_t token,
                         const uint8_t* ahead) {
  const PackedPart w(o.matrix, tile, quad);
  const Prepared x(o.in, token);
  const uint32_t steps = o.in.padded / 64;
  Sums total[Tokens][Quads];
  start_totals<Format, Tokens, Quads>(w, x, steps, total);
  for (uint32_t begin = 0; begin < steps; begin += kSegment<Format>) {
    const uint32_t end = std::min(begin + kSegment<Format>, steps);
    int32x4_t low[Tokens][Quads];
    int32x4_t high[Tokens][Quads];
    for (int t = 0; t < Tokens; ++t) {
      for (int q = 0; q < Quads; ++q) low[t][q] = high[t][q] = vdupq_n_s32(0);
    }
    for (size_t step = begin; step < end; ++step) {
      const PackedPart::Step bytes = w.step<Format>(step);
      const uint8_t* soon = ahead + (bytes.low - w.tile);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        int32x4_t group_low[Tokens][Quads];
        int32x4_t group_high[Tokens][Quads];
#pragma GCC unroll 4
        for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 4
          for (int q = 0; q < Quads; ++q) group_low[t][q] = group_high[t][q] = vdupq_n_s32(0);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          const size_t chunk = static_cast<size_t>(g) * 4 + static_cast<size_t>(c);
          if (quad == 0) touch(soon + PackedStep::low_of(Format, chunk));
          int8x16_t first[Quads];
          int8x16_t second[Quads];
#pragma GCC unroll 4
          for (int q = 0; q < Quads; ++q) {
            unpack<Format>(bytes.low + PackedStep::low_of(Format, chunk) + q * 16,
                           bytes.high + PackedStep::high_of(chunk) + q * 16, chunk, first[q],
                           second[q]);
          }
#pragma GCC unroll 4
          for (int t = 0; t < Tokens; ++t) {
            const int8x16_t planes =
                load_signed(x.planes + t * x.token_bytes + step * kStepX + chunk * 16);
#pragma GCC unroll 4
            for (int q = 0; q < Quads; ++q) {
              group_low[t][q] = vdotq_laneq_s32(group_low[t][q], first[q], planes, 0);
              group_high[t][q] = vdotq_laneq_s32(group_high[t][q], first[q], planes, 2);
            }
#pragma GCC unroll 4
            for (int q = 0; q < Quads; ++q) {
              group_low[t][q] = vdotq_laneq_s32(group_low[t][q], second[q], planes, 1);
              group_high[t][q] = vdotq_laneq_s32(group_high[t][q], second[q], planes, 3);
            }
          }
        }
        int32x4_t scale[Quads];
        widen<Quads>(load_scales<Format, Quads>(bytes.scales, static_cast<size_t>(g)), scale);
#pragma GCC unroll 4
        for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 4
          for (int q = 0; q < Quads; ++q) {
            low[t][q] = vmlaq_s32(low[t][q], group_low[t][q], scale[q]);
            high[t][q] = vmlaq_s32(high[t][q], group_high[t][q], scale[q]);
          }
        }
      }
    }
    for (int t = 0; t < Tokens; ++t) {
      for (int q = 0; q < Quads; ++q) add_planes(total[t][q], low[t][q], high[t][q]);
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

void dotprod_matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
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
