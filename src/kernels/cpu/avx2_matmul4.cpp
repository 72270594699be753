// Products of 4- and 6-bit weights with AVX2. With x = 256 * high + low, both planes signed bytes,
// and a group's weights scale * q - 8 minimum (6 bits: minimum = 4 scale),
//   sum w x = 256 * H + L, H = sum over groups of scale * (sum q high) - 8 minimum * (sum high),
// and L likewise. vpmaddubsw multiplies quants and plane bytes exactly, two a lane, and 16 bits
// hold a whole group of 4-bit ones, 16 * 15 * 128 = 30720, or four 6-bit ones, 4 * 63 * 128 =
// 32256; vpmaddwd with the scale makes 32 bits of them. A column adds at most 4064 * 128 to H or L,
// so they hold 4096 columns (< 2^31); partial sums may wrap, the result of a segment does not.
#include "kernels/cpu/avx2_matmul.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

constexpr size_t kStepX = 128;     // of planes for 64 columns
constexpr uint32_t kSegment = 64;  // steps until a sum is widened

// Eight bytes as 32-bit integers.
TANDEM_AVX2 inline __m256i widen(const uint8_t* bytes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}

// Pairs of 16 bits from two vectors of 32-bit integers below 2^16.
TANDEM_AVX2 inline __m256i pairs(__m256i first, __m256i second) {
  return _mm256_or_si256(first, _mm256_slli_epi32(second, 16));
}

TANDEM_AVX2 inline __m256i combine_planes(__m128i low, __m128i high) {
  return _mm256_add_epi64(_mm256_cvtepi32_epi64(low),
                          _mm256_slli_epi64(_mm256_cvtepi32_epi64(high), 8));
}

// The multipliers of a step for eight rows: a group's scale twice, and 8 minimum of both
// groups, as pairs of 16 bits.
struct Multipliers {
  __m256i scale[2];
  __m256i minimums;
};

template <WeightFormat Format>
TANDEM_AVX2 inline Multipliers multipliers(const uint8_t* scales, int half) {
  __m256i scale[2];
  __m256i minimum[2];
  if constexpr (Format == WeightFormat::k4) {
    const uint8_t* own = scales + half * 8;
    const __m256i rest = widen(own + 32);
    const __m256i high[2] = {_mm256_and_si256(rest, _mm256_set1_epi32(15)),
                             _mm256_srli_epi32(rest, 4)};
    for (int g = 0; g < 2; ++g) {
      const __m256i byte = widen(own + g * 16);
      scale[g] = _mm256_and_si256(byte, _mm256_set1_epi32(63));
      minimum[g] = _mm256_or_si256(_mm256_srli_epi32(byte, 6), _mm256_slli_epi32(high[g], 2));
    }
  } else {
    for (int g = 0; g < 2; ++g) {
      scale[g] = widen(scales + g * 16 + half * 8);
      minimum[g] = _mm256_slli_epi32(scale[g], 2);
    }
  }
  return {{pairs(scale[0], scale[0]), pairs(scale[1], scale[1])},
          _mm256_slli_epi16(pairs(minimum[0], minimum[1]), 3)};
}

// Quants of half a chunk: columns 0 to 3 and 4 to 7 of eight rows.
template <WeightFormat Format>
TANDEM_AVX2 inline void unpack(const uint8_t* low, const uint8_t* high, int chunk, __m256i& first,
                               __m256i& second) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i bytes = load(low);
  first = _mm256_and_si256(bytes, nibble);
  second = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
  if constexpr (Format == WeightFormat::k6) {
    const __m256i top = _mm256_set1_epi8(0x30);
    const __m256i bits = load(high);
    if (chunk % 2 == 0) {
      first = _mm256_or_si256(first, _mm256_and_si256(_mm256_slli_epi16(bits, 4), top));
      second = _mm256_or_si256(second, _mm256_and_si256(_mm256_slli_epi16(bits, 2), top));
    } else {
      first = _mm256_or_si256(first, _mm256_and_si256(bits, top));
      second = _mm256_or_si256(second, _mm256_and_si256(_mm256_srli_epi16(bits, 2), top));
    }
  }
}

// Products of eight columns with one plane, 16 bits each.
TANDEM_AVX2 inline __m256i products(__m256i first, __m256i second, const uint8_t* plane) {
  return _mm256_add_epi16(_mm256_maddubs_epi16(first, broadcast4(plane)),
                          _mm256_maddubs_epi16(second, broadcast4(plane + 8)));
}

// sum += scale times the sums of a group, or of a part of it.
TANDEM_AVX2 inline void add_scaled(__m256i& sum, __m256i part, __m256i scale) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(part, scale));
}

template <WeightFormat Format, int Tokens>
TANDEM_AVX2 void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const uint8_t* ahead) {
  const size_t token_bytes = prepared_bytes(o.in.padded);
  const uint8_t* x = o.in.prepared.data() + token * token_bytes;
  const uint8_t* plane_sums = x + size_t{o.in.padded} * 2;
  const uint8_t* w = o.matrix.tile(tile);
  const uint32_t steps = o.in.padded / 64;
  __m256i total[Tokens][4];
  for (int t = 0; t < Tokens; ++t) {
    for (int q = 0; q < 4; ++q) total[t][q] = _mm256_setzero_si256();
  }
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    __m256i low[Tokens][2];
    __m256i high[Tokens][2];
#pragma GCC unroll 4
    for (int t = 0; t < Tokens; ++t) {
      low[t][0] = low[t][1] = _mm256_setzero_si256();
      high[t][0] = high[t][1] = _mm256_setzero_si256();
    }
    for (size_t step = begin; step < end; ++step) {
      const PackedStep place = PackedStep::at(Format, steps, step);
      constexpr size_t kLines = Format == WeightFormat::k4 ? 9 : 13;
#pragma GCC unroll 13
      for (size_t line = 0; line < kLines; ++line) touch(ahead + place.low + line * 64);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const uint8_t* weights = w + place.low + half * 32;
        const uint8_t* tops = w + place.high + half * 32;
        const Multipliers m = multipliers<Format>(w + place.scales, half);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          __m256i group_low[Tokens];
          __m256i group_high[Tokens];
#pragma GCC unroll 4
          for (int t = 0; t < Tokens; ++t) {
            group_low[t] = _mm256_setzero_si256();
            group_high[t] = _mm256_setzero_si256();
          }
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) {
            const int chunk = g * 4 + c;
            __m256i first;
            __m256i second;
            unpack<Format>(weights + PackedStep::low_of(Format, static_cast<size_t>(chunk)),
                           tops + PackedStep::high_of(static_cast<size_t>(chunk)), chunk, first,
                           second);
#pragma GCC unroll 4
            for (int t = 0; t < Tokens; ++t) {
              const uint8_t* planes = x + t * token_bytes + step * kStepX + chunk * 16;
              const __m256i lows = products(first, second, planes);
              const __m256i highs = products(first, second, planes + 4);
              if constexpr (Format == WeightFormat::k4) {
                group_low[t] = _mm256_add_epi16(group_low[t], lows);
                group_high[t] = _mm256_add_epi16(group_high[t], highs);
              } else {
                add_scaled(low[t][half], lows, m.scale[g]);
                add_scaled(high[t][half], highs, m.scale[g]);
              }
            }
          }
          if constexpr (Format == WeightFormat::k4) {
#pragma GCC unroll 4
            for (int t = 0; t < Tokens; ++t) {
              add_scaled(low[t][half], group_low[t], m.scale[g]);
              add_scaled(high[t][half], group_high[t], m.scale[g]);
            }
          }
        }
#pragma GCC unroll 4
        for (int t = 0; t < Tokens; ++t) {
          const uint8_t* sum = plane_sums + t * token_bytes + step * 8;
          low[t][half] =
              _mm256_sub_epi32(low[t][half], _mm256_madd_epi16(m.minimums, broadcast4(sum)));
          high[t][half] =
              _mm256_sub_epi32(high[t][half], _mm256_madd_epi16(m.minimums, broadcast4(sum + 4)));
        }
      }
    }
    for (int t = 0; t < Tokens; ++t) {
      for (int half = 0; half < 2; ++half) {
        const __m256i l = low[t][half];
        const __m256i h = high[t][half];
        total[t][2 * half] =
            _mm256_add_epi64(total[t][2 * half],
                             combine_planes(_mm256_castsi256_si128(l), _mm256_castsi256_si128(h)));
        total[t][2 * half + 1] = _mm256_add_epi64(
            total[t][2 * half + 1],
            combine_planes(_mm256_extracti128_si256(l, 1), _mm256_extracti128_si256(h, 1)));
      }
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    store_rows(o, tile, token + static_cast<uint32_t>(t), total[t]);
  }
}

template <WeightFormat Format>
void multiply(const MatmulOutput& o, uint32_t tile_begin, uint32_t tile_end) {
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    const uint8_t* ahead = o.in.tokens <= 2 ? o.matrix.tile(tile) + 4096 : o.matrix.tile(tile + 1);
    uint32_t token = 0;
    for (; token + 2 <= o.in.tokens; token += 2) {
      block<Format, 2>(o, tile, token, ahead);
      ahead = o.matrix.tile(tile);
    }
    if (token < o.in.tokens) block<Format, 1>(o, tile, token, ahead);
  }
}

}  // namespace

void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  if (matrix.format == WeightFormat::k4) {
    multiply<WeightFormat::k4>(o, tile_begin, tile_end);
  } else {
    multiply<WeightFormat::k6>(o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::avx2

#endif
