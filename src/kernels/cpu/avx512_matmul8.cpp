// Products of 8-bit weights with AVX-512 VNNI.
//
// With weights stored as w + 128 in [1, 255] and x = 256 * high + low, both planes signed bytes,
//   sum w x = 256 * sum (w + 128) high + sum (w + 128) low - 128 * sum x.
// vpdpbusd adds four products a lane and step: |255 * 128 * 65536| < 2^31, so no plane's 32-bit sum
// overflows in rows of up to kMaxRow columns.
#include "kernels/cpu/avx512_matmul.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {
namespace {

// `Tokens` tokens from `token` on times `Tiles` tiles from `tile` on. `Chains` accumulators a sum,
// where too few sums would wait for each other. `ahead[r]` is touched a cache line a step, if
// `Touch`: weights that are read soon.
template <int Tokens, int Tiles, int Chains, bool Touch = true>
TANDEM_AVX512 void block(const MatmulOutput& o, uint32_t tile, uint32_t token,
                         const uint8_t* const* ahead) {
  const size_t token_bytes = prepared_bytes(o.in.padded);
  const uint8_t* x = o.in.prepared.data() + token * token_bytes;
  const uint8_t* w = o.matrix.tile(tile);
  const size_t tile_bytes = o.matrix.tile_bytes();
  const uint32_t steps = o.in.padded / 4;
  __m512i low[Chains][Tokens][Tiles];
  __m512i high[Chains][Tokens][Tiles];
  for (int c = 0; c < Chains; ++c) {
    for (int t = 0; t < Tokens; ++t) {
      for (int r = 0; r < Tiles; ++r) {
        low[c][t][r] = _mm512_setzero_si512();
        high[c][t][r] = _mm512_setzero_si512();
      }
    }
  }
  for (uint32_t step = 0; step < steps; step += Chains) {
#pragma GCC unroll 4
    for (int c = 0; c < Chains; ++c) {
      const size_t s = step + static_cast<uint32_t>(c);
      __m512i weights[Tiles];
#pragma GCC unroll 4
      for (int r = 0; r < Tiles; ++r) {
        if constexpr (Touch) touch(ahead[r] + s * 64);
        weights[r] = _mm512_load_si512(w + r * tile_bytes + s * 64);
      }
#pragma GCC unroll 12
      for (int t = 0; t < Tokens; ++t) {
        const __m512i x_low = broadcast4(x + t * token_bytes + s * 8);
        const __m512i x_high = broadcast4(x + t * token_bytes + s * 8 + 4);
#pragma GCC unroll 4
        for (int r = 0; r < Tiles; ++r) {
          add_products(low[c][t][r], weights[r], x_low);
          add_products(high[c][t][r], weights[r], x_high);
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int t = 0; t < Tokens; ++t) {
    const auto sum_index = token + static_cast<uint32_t>(t);
    const __m512i offset = _mm512_set1_epi64(128 * o.in.sums[sum_index]);
#pragma GCC unroll 4
    for (int r = 0; r < Tiles; ++r) {
      // The chains together are one plane's sum: no overflow here either.
#pragma GCC unroll 4
      for (int c = 1; c < Chains; ++c) {
        low[0][t][r] = _mm512_add_epi32(low[0][t][r], low[c][t][r]);
        high[0][t][r] = _mm512_add_epi32(high[0][t][r], high[c][t][r]);
      }
      const __m512i first = combine_planes(_mm512_castsi512_si256(low[0][t][r]),
                                           _mm512_castsi512_si256(high[0][t][r]));
      const __m512i second = combine_planes(_mm512_extracti64x4_epi64(low[0][t][r], 1),
                                            _mm512_extracti64x4_epi64(high[0][t][r], 1));
      store_rows(o, tile + static_cast<uint32_t>(r), sum_index, _mm512_sub_epi64(first, offset),
                 _mm512_sub_epi64(second, offset));
    }
  }
}

using Block = void (*)(const MatmulOutput&, uint32_t tile, uint32_t token,
                       const uint8_t* const* ahead);

// [tiles - 1][tokens - 1]
constexpr uint32_t kMostTokens = 6;
constexpr Block kBlocks[2][kMostTokens] = {{block<1, 1, 4>, block<2, 1, 4>, block<3, 1, 2>,
                                            block<4, 1, 2>, block<5, 1, 1>, block<6, 1, 1>},
                                           {block<1, 2, 4>, block<2, 2, 2>, block<3, 2, 1>,
                                            block<4, 2, 1>, block<5, 2, 1>, block<6, 2, 1>}};

}  // namespace

void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  const uint32_t blocks = (in.tokens + kMostTokens - 1) / kMostTokens;
  const uint32_t wide = in.tokens > 1 ? 2 : 1;
  const bool alone = in.tokens == 1 && fetches_streams_ahead();
  for (uint32_t tile = tile_begin; tile < tile_end;) {
    const uint32_t tiles = tile_end - tile >= wide ? wide : 1;
    uint32_t token = 0;
    for (uint32_t b = 0; b < blocks; ++b) {
      const uint32_t tokens = (in.tokens - token) / (blocks - b);
      // One block streams the weights and touches the next tiles. Of several blocks, each touches
      // one.
      const uint8_t* ahead[2] = {matrix.tile(tile + tiles), matrix.tile(tile + tiles + 1)};
      if (blocks > 1) {
        for (uint32_t r = 0; r < 2; ++r) {
          if (r != b) ahead[r] = matrix.tile(tile);
        }
      }
      const Block run = alone ? block<1, 1, 4, false> : kBlocks[tiles - 1][tokens - 1];
      run(o, tile, token, ahead);
      token += tokens;
    }
    tile += tiles;
  }
}

}  // namespace tandem::kernels::cpu::avx512

#endif
