// Products of 8-bit weights with sdot. Turning the top bit of w + 128 gives w back as a signed
// byte, and with x = 256 * high + low, both planes signed bytes,
//   sum w x = 256 * sum w high + sum w low.
// |sum| <= 65536 * 127 * 128 = 1,065,353,216 < 2^31, so no plane's 32-bit sum overflows.
//
// 64 products of a token (16 rows, 4 columns) take 8 sdot. A block of 6 tokens adds 0.7 loads of
// weights, 0.7 exclusive ors and 1 load of activations to that, a lone token 4, 4 and 0.5, for 64
// bytes of weights. docs/performance.md has the whole counts.
#include "kernels/cpu/neon_matmul.h"

#if defined(__aarch64__)

namespace tandem::kernels::cpu::neon {
namespace {

// `Quads` quads from `quad` on. Few tokens take the whole tile, more of them half of it at a time:
// 24 sums fill the registers best. A lone token has two of each sum, so that they need not wait for
// each other.
template <int Tokens, int Quads>
TANDEM_DOTPROD void part(const MatmulOutput& o, uint32_t tile, uint32_t quad, uint32_t token,
                         const uint8_t* ahead) {
  constexpr int kChains = Tokens == 1 ? 2 : 1;
  const uint32_t padded = o.in.padded;
  const size_t token_bytes = planes_bytes(padded);
  const uint8_t* x = o.in.prepared.data() + token * token_bytes;
  const uint8_t* w = o.matrix.tile(tile) + size_t{quad} * 16;
  const int8x16_t top = vdupq_n_s8(INT8_MIN);
  int32x4_t low[kChains][Tokens][Quads];
  int32x4_t high[kChains][Tokens][Quads];
  for (int c = 0; c < kChains; ++c) {
    for (int t = 0; t < Tokens; ++t) {
      for (int q = 0; q < Quads; ++q) low[c][t][q] = high[c][t][q] = vdupq_n_s32(0);
    }
  }
  for (size_t k = 0; k < padded; k += 8) {
    // Each half of a tile touches one of the two lines.
    touch(ahead + k * 16 + size_t{quad} * 32);
    if constexpr (Quads == kQuads) touch(ahead + k * 16 + 64);
    int8x16_t first[Quads];
    int8x16_t second[Quads];
#pragma GCC unroll 4
    for (int q = 0; q < Quads; ++q) {
      first[q] = veorq_s8(load_signed(w + k * 16 + q * 16), top);
      second[q] = veorq_s8(load_signed(w + k * 16 + 64 + q * 16), top);
    }
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) {
      const int8x16_t planes = load_signed(x + t * token_bytes + k * 2);
      constexpr int kLast = kChains - 1;
#pragma GCC unroll 4
      for (int q = 0; q < Quads; ++q) {
        low[0][t][q] = vdotq_laneq_s32(low[0][t][q], first[q], planes, 0);
        high[0][t][q] = vdotq_laneq_s32(high[0][t][q], first[q], planes, 2);
      }
#pragma GCC unroll 4
      for (int q = 0; q < Quads; ++q) {
        low[kLast][t][q] = vdotq_laneq_s32(low[kLast][t][q], second[q], planes, 1);
        high[kLast][t][q] = vdotq_laneq_s32(high[kLast][t][q], second[q], planes, 3);
      }
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    for (int q = 0; q < Quads; ++q) {
      Sums total = zero_sums();
      for (int c = 0; c < kChains; ++c) add_planes(total, low[c][t][q], high[c][t][q]);
      store_quad(o, tile, quad + static_cast<uint32_t>(q), token + static_cast<uint32_t>(t), total);
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

void dotprod_matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                     uint32_t tile_end, const float* bias, float* out, size_t stride) {
  run_blocks(kBlocks, {matrix, in, bias, out, stride}, tile_begin, tile_end);
}

}  // namespace tandem::kernels::cpu::neon

#endif
