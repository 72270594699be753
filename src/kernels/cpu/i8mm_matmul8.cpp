// Products of 8-bit weights with usmmla: two rows of eight weights w + 128, unsigned, times the low
// and the high plane of eight activations, signed: four sums of eight products an instruction.
//   sum w x = 256 * sum (w + 128) high + sum (w + 128) low - 128 * sum x
// |sum| <= 65536 * 255 * 128 < 2^31, so no plane's 32-bit sum overflows.
//
// 64 products of a token (8 rows, 8 columns) take 4 usmmla. A block of 6 tokens adds 0.7 loads of
// weights, 0.7 interleavings (two rows of four columns become one of eight) and 1 load of
// activations to that, a lone token 4, 4 and 0.5, for 64 bytes of weights.
#include "kernels/cpu/neon_matmul.h"

#if defined(__aarch64__)

namespace tandem::kernels::cpu::neon {
namespace {

// `Quads` quads from `quad` on, two pairs of rows each; a pair's sums of a token are [row 0 low,
// high, row 1 low, high].
template <int Tokens, int Quads>
TANDEM_I8MM void part(const MatmulOutput& o, uint32_t tile, uint32_t quad, uint32_t token,
                      const uint8_t* ahead) {
  constexpr int kPairs = 2 * Quads;
  constexpr int kChains = Tokens == 1 ? 2 : 1;
  const uint32_t padded = o.in.padded;
  const size_t token_bytes = planes_bytes(padded);
  const uint8_t* x = o.in.prepared.data() + token * token_bytes;
  const uint8_t* w = o.matrix.tile(tile) + size_t{quad} * 16;
  int32x4_t sums[kChains][Tokens][kPairs];
  for (int c = 0; c < kChains; ++c) {
    for (int t = 0; t < Tokens; ++t) {
      for (int p = 0; p < kPairs; ++p) sums[c][t][p] = vdupq_n_s32(0);
    }
  }
  for (size_t column = 0; column < padded; column += 8 * kChains) {
#pragma GCC unroll 2
    for (int c = 0; c < kChains; ++c) {
      const size_t k = column + 8 * static_cast<size_t>(c);
      // Each half of a tile touches one of the two lines.
      touch(ahead + k * 16 + size_t{quad} * 32);
      if constexpr (Quads == kQuads) touch(ahead + k * 16 + 64);
      uint8x16_t pairs[kPairs];
#pragma GCC unroll 4
      for (int q = 0; q < Quads; ++q) {
        const uint32x4_t first = vreinterpretq_u32_u8(vld1q_u8(w + k * 16 + q * 16));
        const uint32x4_t second = vreinterpretq_u32_u8(vld1q_u8(w + k * 16 + 64 + q * 16));
        pairs[2 * q] = vreinterpretq_u8_u32(vzip1q_u32(first, second));
        pairs[2 * q + 1] = vreinterpretq_u8_u32(vzip2q_u32(first, second));
      }
#pragma GCC unroll 8
      for (int t = 0; t < Tokens; ++t) {
        const int8x16_t planes = load_signed(x + t * token_bytes + k * 2);
#pragma GCC unroll 8
        for (int p = 0; p < kPairs; ++p) {
          sums[c][t][p] = vusmmlaq_s32(sums[c][t][p], pairs[p], planes);
        }
      }
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    const auto index = token + static_cast<uint32_t>(t);
    for (int q = 0; q < Quads; ++q) {
      Sums total = zero_sums();
      for (int c = 0; c < kChains; ++c) {
        const int32x4_t first = sums[c][t][2 * q];
        const int32x4_t second = sums[c][t][2 * q + 1];
        add_planes(total, vuzp1q_s32(first, second), vuzp2q_s32(first, second));
      }
      subtract(total, 128 * o.in.sums[index]);
      store_quad(o, tile, quad + static_cast<uint32_t>(q), index, total);
    }
  }
}

template <int Tokens>
void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const uint8_t* ahead) {
  if constexpr (Tokens <= 2) {
    part<Tokens, 4>(o, tile, 0, token, ahead);
  } else {
    part<Tokens, 2>(o, tile, 0, token, ahead);
    part<Tokens, 2>(o, tile, 2, token, ahead);
  }
}

constexpr Block kBlocks[6] = {block<1>, block<2>, block<3>, block<4>, block<5>, block<6>};

}  // namespace

void i8mm_matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                  uint32_t tile_end, const float* bias, float* out, size_t stride) {
  run_blocks(kBlocks, {matrix, in, bias, out, stride}, tile_begin, tile_end);
}

}  // namespace tandem::kernels::cpu::neon

#endif
