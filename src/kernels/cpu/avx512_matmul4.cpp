// Products of 4- and 6-bit weights with AVX-512 VNNI.
//
// With x = 256 * high + low, both planes signed bytes, and a group's weights scale * q - 8 minimum
// (6 bits: minimum = 4 scale), sum w x = 256 * H + L, H = sum over groups of scale * (sum q high) -
// 8 minimum * (sum high), and L likewise. A column adds at most 4064 * 128 to H or L, so they hold
// 4096 columns (4064 * 128 * 4096 < 2^31); partial sums may wrap, the result of a segment does not.
#include "kernels/cpu/avx512_multipliers.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {
namespace {

constexpr size_t kStepX = 128;     // of planes for 64 columns
constexpr uint32_t kSegment = 64;  // steps until a sum is widened

// Of each step's cache lines of quants a block touches those from `first` to `last`: blocks of
// other tokens touch the others. None at all if `last` is 0.
struct Share {
  uint32_t first;
  uint32_t last;
};

template <WeightFormat Format, int Tiles>
TANDEM_AVX512 inline void touch_step(const Ahead& ahead, const Share& share, uint32_t steps,
                                     size_t tile_bytes, size_t step) {
  const uint8_t* tile = ahead.at<Tiles>(step, tile_bytes);
  const PackedStep place = PackedStep::at(Format, steps, step);
  const size_t quants = Format == WeightFormat::k4 ? place.low : place.high;
#pragma GCC unroll 2
  for (int r = 0; r < Tiles; ++r, tile += tile_bytes) {
    for (uint32_t line = share.first; line < share.last; ++line) {
      touch(tile + quants + line * 64);
    }
    if (share.first == 0) touch(tile + place.scales);
  }
}

// The multipliers of 64 columns for 16 rows: two scales, and -8 minimum of both groups as 16-bit
// pairs.
struct Multipliers {
  __m512i scale[2];
  __m512i pairs;
};

template <WeightFormat Format>
TANDEM_AVX512 inline Multipliers multipliers(const uint8_t* scales) {
  const GroupMultipliers m = group_multipliers<Format>(scales);
  const __m512i both = _mm512_or_si512(m.minimum[0], _mm512_slli_epi32(m.minimum[1], 16));
  return {{m.scale[0], m.scale[1]},
          _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16(both, 3))};
}

// Quants of one chunk: columns 0 to 3 and 4 to 7 of 16 rows.
template <WeightFormat Format>
TANDEM_AVX512 inline void unpack(const uint8_t* low, const uint8_t* high, size_t chunk,
                                 __m512i& first, __m512i& second) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i bytes = _mm512_loadu_si512(low);
  first = _mm512_and_si512(bytes, nibble);
  second = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
  if constexpr (Format == WeightFormat::k6) {
    const __m512i top = _mm512_set1_epi8(0x30);
    const __m512i bits = _mm512_loadu_si512(high + PackedStep::high_of(chunk));
    if (chunk % 2 == 0) {
      first = _mm512_or_si512(first, _mm512_and_si512(_mm512_slli_epi16(bits, 4), top));
      second = _mm512_or_si512(second, _mm512_and_si512(_mm512_slli_epi16(bits, 2), top));
    } else {
      first = _mm512_or_si512(first, _mm512_and_si512(bits, top));
      second = _mm512_or_si512(second, _mm512_and_si512(_mm512_srli_epi16(bits, 2), top));
    }
  }
}

// sums[r] += weights[r] times four bytes of activations: from memory for one tile, loaded once for
// two.
template <int Tiles>
TANDEM_AVX512 inline void add_to_tiles(__m512i* sums, const __m512i* weights,
                                       const uint8_t* bytes) {
  if constexpr (Tiles == 1) {
    add_products(sums[0], weights[0], bytes);
  } else {
    const __m512i values = broadcast4(bytes);
    add_products(sums[0], weights[0], values);
    add_products(sums[1], weights[1], values);
  }
}

// `Tokens` tokens from `token` on times `Tiles` tiles from `tile` on. Two tiles share each
// activation that is loaded; the sums that this leaves no registers for are touched once a group.
template <WeightFormat Format, int Tokens, int Tiles>
TANDEM_AVX512 void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const Ahead& ahead,
                         const Share& share) {
  constexpr bool kApart = Tokens * Tiles == 1;
  const size_t token_bytes = prepared_bytes(o.in.padded);
  const uint8_t* x = o.in.prepared.data() + token * token_bytes;
  const uint8_t* sums = x + size_t{o.in.padded} * 2;
  const uint8_t* w = o.matrix.tile(tile);
  const size_t tile_bytes = o.matrix.tile_bytes();
  const uint32_t steps = o.in.padded / 64;
  __m512i total[Tokens][Tiles][2] = {};
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    __m512i low[Tokens][Tiles] = {};
    __m512i high[Tokens][Tiles] = {};
    for (size_t step = begin; step < end; ++step) {
      if (share.last != 0) touch_step<Format, Tiles>(ahead, share, steps, tile_bytes, step);
      const PackedStep place = PackedStep::at(Format, steps, step);
      Multipliers m[Tiles];
#pragma GCC unroll 2
      for (int r = 0; r < Tiles; ++r) m[r] = multipliers<Format>(w + r * tile_bytes + place.scales);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        __m512i group_low[Tokens][Tiles];
        __m512i group_high[Tokens][Tiles];
        __m512i other_low[Tiles];
        __m512i other_high[Tiles];
#pragma GCC unroll 2
        for (int r = 0; r < Tiles; ++r) {
          other_low[r] = _mm512_setzero_si512();
          other_high[r] = _mm512_setzero_si512();
        }
#pragma GCC unroll 12
        for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 2
          for (int r = 0; r < Tiles; ++r) {
            group_low[t][r] = _mm512_setzero_si512();
            group_high[t][r] = _mm512_setzero_si512();
          }
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          const size_t chunk = static_cast<size_t>(g) * 4 + static_cast<size_t>(c);
          __m512i first[Tiles];
          __m512i second[Tiles];
#pragma GCC unroll 2
          for (int r = 0; r < Tiles; ++r) {
            const uint8_t* bytes = w + r * tile_bytes;
            unpack<Format>(bytes + place.low + PackedStep::low_of(Format, chunk),
                           bytes + place.high, chunk, first[r], second[r]);
          }
#pragma GCC unroll 12
          for (int t = 0; t < Tokens; ++t) {
            const uint8_t* planes = x + t * token_bytes + step * kStepX + chunk * 16;
            add_to_tiles<Tiles>(group_low[t], first, planes);
            add_to_tiles<Tiles>(group_high[t], first, planes + 4);
            // Of one row of sums each would wait for the one before.
            add_to_tiles<Tiles>(kApart ? other_low : group_low[t], second, planes + 8);
            add_to_tiles<Tiles>(kApart ? other_high : group_high[t], second, planes + 12);
          }
        }
#pragma GCC unroll 12
        for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 2
          for (int r = 0; r < Tiles; ++r) {
            const __m512i scale = m[r].scale[g];
            if constexpr (kApart) {
              group_low[t][r] = _mm512_add_epi32(group_low[t][r], other_low[r]);
              group_high[t][r] = _mm512_add_epi32(group_high[t][r], other_high[r]);
            }
            low[t][r] = _mm512_add_epi32(low[t][r], _mm512_mullo_epi32(group_low[t][r], scale));
            high[t][r] = _mm512_add_epi32(high[t][r], _mm512_mullo_epi32(group_high[t][r], scale));
          }
        }
      }
#pragma GCC unroll 12
      for (int t = 0; t < Tokens; ++t) {
        const uint8_t* sum = sums + t * token_bytes + step * 8;
#pragma GCC unroll 2
        for (int r = 0; r < Tiles; ++r) {
          add_pairs(low[t][r], m[r].pairs, sum);
          add_pairs(high[t][r], m[r].pairs, sum + 4);
        }
      }
    }
    for (int t = 0; t < Tokens; ++t) {
      for (int r = 0; r < Tiles; ++r) {
        const __m512i l = low[t][r];
        const __m512i h = high[t][r];
        total[t][r][0] = _mm512_add_epi64(
            total[t][r][0], combine_planes(_mm512_castsi512_si256(l), _mm512_castsi512_si256(h)));
        total[t][r][1] = _mm512_add_epi64(
            total[t][r][1],
            combine_planes(_mm512_extracti64x4_epi64(l, 1), _mm512_extracti64x4_epi64(h, 1)));
      }
    }
  }
  for (uint32_t t = 0; t < Tokens; ++t) {
    for (uint32_t r = 0; r < Tiles; ++r) {
      store_rows(o, tile + r, token + t, total[t][r][0], total[t][r][1]);
    }
  }
}

using Block = void (*)(const MatmulOutput&, uint32_t tile, uint32_t token, const Ahead& ahead,
                       const Share& share);

// [tiles - 1][tokens - 1]
constexpr uint32_t kMostTokens = 6;
template <WeightFormat Format>
constexpr Block kBlocks[2][kMostTokens] = {
    {block<Format, 1, 1>, block<Format, 2, 1>, block<Format, 3, 1>, block<Format, 4, 1>,
     block<Format, 5, 1>, block<Format, 6, 1>},
    {block<Format, 1, 2>, block<Format, 2, 2>, block<Format, 3, 2>, block<Format, 4, 2>,
     block<Format, 5, 2>, block<Format, 6, 2>}};

template <WeightFormat Format>
void multiply(const MatmulOutput& o, uint32_t tile_begin, uint32_t tile_end) {
  const uint32_t blocks = (o.in.tokens + kMostTokens - 1) / kMostTokens;
  constexpr uint32_t kLines = kStepBytes<Format> / 64;
  const uint32_t wide = o.in.tokens > 1 ? 2 : 1;
  // One token reads one stream, which some processors fetch ahead better if nothing is touched.
  const bool alone = o.in.tokens == 1 && fetches_streams_ahead();
  for (uint32_t tile = tile_begin; tile < tile_end;) {
    const uint32_t tiles = tile_end - tile >= wide ? wide : 1;
    const Ahead ahead = look_ahead(o.matrix, tile, tiles, o.in.padded / 64, kStepBytes<Format>);
    uint32_t token = 0;
    for (uint32_t b = 0; b < blocks; ++b) {
      const uint32_t tokens = (o.in.tokens - token) / (blocks - b);
      const Share share{kLines * b / blocks, alone ? 0 : kLines * (b + 1) / blocks};
      kBlocks<Format>[tiles - 1][tokens - 1](o, tile, token, ahead, share);
      token += tokens;
    }
    tile += tiles;
  }
}

}  // namespace

void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  // From here on expanding weights to 16 bits first is faster; 6 bits take more of it.
  const uint32_t for_panels =
      matrix.format == WeightFormat::k4 ? kFewestPanelTokens : 2 * kFewestPanelTokens;
  if (in.tokens >= for_panels) {
    return matmul_panels(matrix, in, tile_begin, tile_end, bias, out, stride);
  }
  if (matrix.format == WeightFormat::k4 && in.tokens == 1) {
    return matvec4(matrix, in, tile_begin, tile_end, bias, out);
  }
  const MatmulOutput o{matrix, in, bias, out, stride};
  if (matrix.format == WeightFormat::k4) {
    multiply<WeightFormat::k4>(o, tile_begin, tile_end);
  } else {
    multiply<WeightFormat::k6>(o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::avx512

#endif
