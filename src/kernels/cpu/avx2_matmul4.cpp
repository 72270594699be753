// Products of 4- and 6-bit weights with several tokens, with AVX2: quants become 16-bit integers
// that four tokens share, and meet the 16-bit activations in vpmaddwd. With a group's weights
// scale * q - 8 minimum and S = sum q x over the group (6 bits: sum (q - 32) x, whose minimum is
// 0),
//   sum w x = sum over groups of scale * S - minimum * 8 sum x.
// |S| <= 32 * 32 * 32639 < 2^26 is split into its upper 16 bits and the lower ones, and so is 8 sum
// x: each part times its multiplier adds up in 32 bits over kSegment steps, since a step adds at
// most 2 * 127 * 65535 (6 bits) or 2 * 63 * (65535 + 32768) (4 bits).
#include "kernels/cpu/avx2_multipliers.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

constexpr uint32_t kSegment = 128;  // steps until a sum is widened
static_assert(int64_t{kSegment} * 2 * 127 * 65535 <= INT32_MAX);
static_assert(int64_t{kSegment} * 2 * 63 * (65535 + 32768) <= INT32_MAX);

// From so many tokens on expanding weights to 16 bits first is faster.
constexpr uint32_t kFewestPanelTokens = 9;
// In registers at once: with more, GCC 12 keeps the addresses of their activations on the stack.
constexpr uint32_t kTokensAtOnce = 4;

// Upper and lower parts of eight rows, 65536 * upper + lower.
struct Parts {
  __m256i upper;
  __m256i lower;
};

TANDEM_AVX2 inline void add_parts(Parts& parts, __m256i sum, __m256i scale) {
  const __m256i lower = _mm256_and_si256(sum, _mm256_set1_epi32(0xffff));
  parts.upper =
      _mm256_add_epi32(parts.upper, _mm256_mullo_epi32(_mm256_srai_epi32(sum, 16), scale));
  parts.lower = _mm256_add_epi32(parts.lower, _mm256_mullo_epi32(lower, scale));
}

TANDEM_AVX2 inline __m256i join(__m128i upper, __m128i lower) {
  return _mm256_add_epi64(_mm256_slli_epi64(_mm256_cvtepi32_epi64(upper), 16),
                          _mm256_cvtepi32_epi64(lower));
}

// A group's products, S of the above.
template <WeightFormat Format, int Tokens>
TANDEM_AVX2 inline void multiply_group(PairSums<Tokens>& sums, const uint8_t* low,
                                       const uint8_t* high, const int16_t* x, size_t stride) {
  for (size_t c = 0; c < 4; c += 2) {
#pragma GCC unroll 2
    for (size_t d = 0; d < 2; ++d) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sums.add(quant_pair<Format>(low, high, d, i), quant_pair<Format>(low + 32, high + 32, d, i),
                 x + d * 8 + i * 2, stride);
      }
    }
    low += PackedStep::low_of(Format, 2);
    high += PackedStep::high_of(2);
    x += 16;
  }
}

template <WeightFormat Format, int Tokens>
TANDEM_AVX2 void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const uint8_t* ahead) {
  const size_t token_bytes = prepared_bytes(o.in.padded);
  const uint8_t* prepared = o.in.prepared.data() + token * token_bytes;
  const uint8_t* group_sums = prepared + size_t{o.in.padded} * 2;
  const auto* x = reinterpret_cast<const int16_t*>(prepared + pairs_offset(o.in.padded));
  const uint8_t* w = o.matrix.tile(tile);
  const uint32_t steps = o.in.padded / 64;
  __m256i total[Tokens][4] = {};
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    Parts parts[Tokens][2] = {};
    for (size_t step = begin; step < end; ++step) {
      const PackedStep place = PackedStep::at(Format, steps, step);
      constexpr size_t kLines = kStepBytes<Format> / 64 + 1;
#pragma GCC unroll 13
      for (size_t line = 0; line < kLines; ++line) {
        touch(ahead + (Format == WeightFormat::k4 ? place.low : place.high) + line * 64);
      }
      const GroupMultipliers m[2] = {group_multipliers<Format>(w + place.scales, 0),
                                     group_multipliers<Format>(w + place.scales, 1)};
      for (size_t g = 0; g < 2; ++g) {
        PairSums<Tokens> sums;
        sums.clear();
        if constexpr (Format == WeightFormat::k6) {
#pragma GCC unroll 6
          for (int t = 0; t < Tokens; ++t) {
            sums.of[t][0] = sums.of[t][1] = broadcast4(
                group_sums + static_cast<size_t>(t) * token_bytes + step * kStepSums + 16 + g * 4);
          }
        }
        multiply_group<Format, Tokens>(sums, w + place.low + PackedStep::low_of(Format, g * 4),
                                       w + place.high + PackedStep::high_of(g * 4),
                                       x + step * 64 + g * 32, token_bytes / 2);
#pragma GCC unroll 6
        for (int t = 0; t < Tokens; ++t) {
          add_parts(parts[t][0], sums.of[t][0], m[0].scale[g]);
          add_parts(parts[t][1], sums.of[t][1], m[1].scale[g]);
        }
      }
      if constexpr (Format == WeightFormat::k4) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m256i minimums = pairs(m[half].minimum[0], m[half].minimum[1]);
#pragma GCC unroll 6
          for (int t = 0; t < Tokens; ++t) {
            const uint8_t* eights =
                group_sums + static_cast<size_t>(t) * token_bytes + step * kStepSums + 8;
            Parts& own = parts[t][half];
            own.lower =
                _mm256_sub_epi32(own.lower, _mm256_madd_epi16(minimums, broadcast4(eights)));
            own.upper =
                _mm256_sub_epi32(own.upper, _mm256_madd_epi16(minimums, broadcast4(eights + 4)));
          }
        }
      }
    }
    for (int t = 0; t < Tokens; ++t) {
      for (int half = 0; half < 2; ++half) {
        const Parts& own = parts[t][half];
        __m256i* sum = total[t] + 2 * half;
        sum[0] = _mm256_add_epi64(
            sum[0], join(_mm256_castsi256_si128(own.upper), _mm256_castsi256_si128(own.lower)));
        sum[1] = _mm256_add_epi64(sum[1], join(_mm256_extracti128_si256(own.upper, 1),
                                               _mm256_extracti128_si256(own.lower, 1)));
      }
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    store_rows(o, tile, token + static_cast<uint32_t>(t), total[t]);
  }
}

using Block = void (*)(const MatmulOutput&, uint32_t tile, uint32_t token, const uint8_t* ahead);
template <WeightFormat Format>
constexpr Block kBlocks[kTokensAtOnce] = {nullptr, block<Format, 2>, block<Format, 3>,
                                          block<Format, 4>};

template <WeightFormat Format>
void multiply(const MatmulOutput& o, uint32_t tile_begin, uint32_t tile_end) {
  const uint32_t most = (o.in.tokens + kTokensAtOnce - 1) / kTokensAtOnce;
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    const uint8_t* ahead = o.in.tokens <= 2 ? o.matrix.tile(tile) + 4096 : o.matrix.tile(tile + 1);
    uint32_t token = 0;
    for (uint32_t blocks = most; blocks > 0; --blocks) {
      const uint32_t tokens = (o.in.tokens - token) / blocks;
      kBlocks<Format>[tokens - 1](o, tile, token, ahead);
      token += tokens;
      ahead = o.matrix.tile(tile);
    }
  }
}

}  // namespace

void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  if (in.tokens >= kFewestPanelTokens) {
    return matmul_panels(matrix, in, tile_begin, tile_end, bias, out, stride);
  }
  if (in.tokens == 1) return matvec4(matrix, in, tile_begin, tile_end, bias, out);
  const MatmulOutput o{matrix, in, bias, out, stride};
  if (matrix.format == WeightFormat::k4) {
    multiply<WeightFormat::k4>(o, tile_begin, tile_end);
  } else {
    multiply<WeightFormat::k6>(o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::avx2

#endif
