// Products of 4-bit weights with AVX-512 VNNI.
//
// With x = 256 * high + low, both planes signed bytes, and a group's weights scale * q - 8 minimum,
//   sum w x = 256 * H + L, H = sum over groups of scale * (sum q high) - 8 minimum * (sum high),
// and L likewise. Within a group |scale * sum q high| <= 255 * 15 * 128 * 32 < 2^24. A column adds
// at most 3825 * 128 to H or L, so they hold 4096 columns (< 2^31); partial sums may wrap, the
// result of a segment does not.
#include "kernels/cpu/avx512_matmul.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {
namespace {

constexpr size_t kStepBytes = 576;  // of weights and scales for 64 columns
constexpr size_t kStepX = 128;      // of planes for 64 columns
constexpr uint32_t kSegment = 64;   // steps until a sum is widened

// Which of the nine cache lines a step of a tile that is read later a block touches.
struct Ahead {
  const uint8_t* tile;
  uint32_t first;
  uint32_t last;
};

// 16 bytes as 32-bit integers.
TANDEM_AVX512 inline __m512i widen(const uint8_t* bytes) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// Two 16-bit integers in every lane.
TANDEM_AVX512 inline __m512i broadcast_pair(const uint8_t* pair) {
  return broadcast4(pair);
}

// `Tokens` tokens from `token` on times one tile.
template <int Tokens>
TANDEM_AVX512 void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const Ahead& ahead) {
  const size_t token_bytes = prepared_bytes(o.in.padded);
  const uint8_t* x = o.in.prepared.data() + token * token_bytes;
  const uint8_t* sums = x + size_t{o.in.padded} * 2;
  const uint8_t* w = o.matrix.tile(tile);
  const uint32_t steps = o.in.padded / 64;
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512i total[Tokens][2];
#pragma GCC unroll 12
  for (int t = 0; t < Tokens; ++t) {
    total[t][0] = _mm512_setzero_si512();
    total[t][1] = _mm512_setzero_si512();
  }
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    __m512i low[Tokens];
    __m512i high[Tokens];
#pragma GCC unroll 12
    for (int t = 0; t < Tokens; ++t) {
      low[t] = _mm512_setzero_si512();
      high[t] = _mm512_setzero_si512();
    }
    for (size_t step = begin; step < end; ++step) {
      const uint8_t* weights = w + step * kStepBytes;
      for (uint32_t line = ahead.first; line < ahead.last; ++line) {
        touch(ahead.tile + step * kStepBytes + line * 64);
      }
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        __m512i group_low[Tokens];
        __m512i group_high[Tokens];
#pragma GCC unroll 12
        for (int t = 0; t < Tokens; ++t) {
          group_low[t] = _mm512_setzero_si512();
          group_high[t] = _mm512_setzero_si512();
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          const int chunk = g * 4 + c;
          const __m512i bytes = _mm512_loadu_si512(weights + chunk * 64);
          const __m512i first = _mm512_and_si512(bytes, nibble);
          const __m512i second = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
#pragma GCC unroll 12
          for (int t = 0; t < Tokens; ++t) {
            const uint8_t* planes = x + t * token_bytes + step * kStepX + chunk * 16;
            add_products(group_low[t], first, planes);
            add_products(group_high[t], first, planes + 4);
            add_products(group_low[t], second, planes + 8);
            add_products(group_high[t], second, planes + 12);
          }
        }
        const __m512i scale = widen(weights + 512 + g * 16);
#pragma GCC unroll 12
        for (int t = 0; t < Tokens; ++t) {
          low[t] = _mm512_add_epi32(low[t], _mm512_mullo_epi32(group_low[t], scale));
          high[t] = _mm512_add_epi32(high[t], _mm512_mullo_epi32(group_high[t], scale));
        }
      }
      // -8 minimum of both groups as pairs of 16 bits, times pairs of sums.
      const __m512i minimums =
          _mm512_or_si512(widen(weights + 544), _mm512_slli_epi32(widen(weights + 560), 16));
      const __m512i pairs =
          _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16(minimums, 3));
#pragma GCC unroll 12
      for (int t = 0; t < Tokens; ++t) {
        const uint8_t* sum = sums + t * token_bytes + step * 8;
        low[t] = _mm512_dpwssd_epi32(low[t], pairs, broadcast_pair(sum));
        high[t] = _mm512_dpwssd_epi32(high[t], pairs, broadcast_pair(sum + 4));
      }
    }
#pragma GCC unroll 12
    for (int t = 0; t < Tokens; ++t) {
      total[t][0] = _mm512_add_epi64(total[t][0], combine_planes(_mm512_castsi512_si256(low[t]),
                                                                 _mm512_castsi512_si256(high[t])));
      total[t][1] =
          _mm512_add_epi64(total[t][1], combine_planes(_mm512_extracti64x4_epi64(low[t], 1),
                                                       _mm512_extracti64x4_epi64(high[t], 1)));
    }
  }
#pragma GCC unroll 12
  for (int t = 0; t < Tokens; ++t) {
    store_rows(o, tile, token + static_cast<uint32_t>(t), total[t][0], total[t][1]);
  }
}

using Block = void (*)(const MatmulOutput&, uint32_t tile, uint32_t token, const Ahead& ahead);

constexpr uint32_t kMostTokens = 6;
constexpr Block kBlocks[kMostTokens] = {block<1>, block<2>, block<3>, block<4>, block<5>, block<6>};

}  // namespace

void matmul4(const PackedMatrix& matrix, const ActivationRows& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  const uint32_t blocks = (in.tokens + kMostTokens - 1) / kMostTokens;
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    uint32_t token = 0;
    for (uint32_t b = 0; b < blocks; ++b) {
      const uint32_t tokens = (in.tokens - token) / (blocks - b);
      // One token streams and touches the same stream ahead; more share the next tile's lines.
      Ahead ahead{matrix.tile(tile + 1), 9 * b / blocks, 9 * (b + 1) / blocks};
      if (in.tokens == 1) ahead.tile = matrix.tile(tile) + 4096;
      kBlocks[tokens - 1](o, tile, token, ahead);
      token += tokens;
    }
  }
}

}  // namespace tandem::kernels::cpu::avx512

#endif
