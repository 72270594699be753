// Products of 4- and 6-bit weights with one token, with AVX2: what decoding spends its time on.
//
// With x = 256 * high + low, both planes signed bytes, and a group's weights scale * q - 8 minimum,
//   sum w x = 256 * H + L, H = sum over groups of scale * (sum q high) - 8 minimum * (sum high),
// and L likewise. vpmaddubsw multiplies quants and plane bytes exactly, two a lane, and 16 bits
// hold a whole group of 4-bit ones, 16 * 15 * 128 = 30720, or four 6-bit ones, 4 * 63 * 128 =
// 32256; vpmaddwd with the scale makes 32 bits of them. A column adds at most 4064 * 128 to H or L,
// so they hold 4096 columns (< 2^31); partial sums may wrap, the result of a segment does not.
#include "kernels/cpu/avx2_multipliers.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

constexpr size_t kStepX = 128;     // of planes for 64 columns
constexpr size_t kAhead = 512;     // bytes
constexpr uint32_t kSegment = 64;  // steps until a sum is widened

// sum += a * b, two products of unsigned and signed bytes a 16-bit lane.
TANDEM_AVX2 inline void add_bytes(__m256i& sum, __m256i a, __m256i b) {
  __m256i products;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
}

TANDEM_AVX2 inline __m256i combine_planes(__m128i low, __m128i high) {
  return _mm256_add_epi64(_mm256_cvtepi32_epi64(low),
                          _mm256_slli_epi64(_mm256_cvtepi32_epi64(high), 8));
}

// Quants of eight rows of a chunk as bytes: columns 0 to 3 and 4 to 7.
template <WeightFormat Format>
TANDEM_AVX2 inline void unpack(const uint8_t* low, const uint8_t* high, size_t chunk,
                               __m256i& first, __m256i& second) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i bytes = load(low + PackedStep::low_of(Format, chunk));
  first = _mm256_and_si256(bytes, nibble);
  second = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
  if constexpr (Format == WeightFormat::k6) {
    const __m256i top = _mm256_set1_epi8(0x30);
    const __m256i bits = load(high + PackedStep::high_of(chunk));
    if (chunk % 2 == 0) {
      first = _mm256_or_si256(first, _mm256_and_si256(_mm256_slli_epi16(bits, 4), top));
      second = _mm256_or_si256(second, _mm256_and_si256(_mm256_slli_epi16(bits, 2), top));
    } else {
      first = _mm256_or_si256(first, _mm256_and_si256(bits, top));
      second = _mm256_or_si256(second, _mm256_and_si256(_mm256_srli_epi16(bits, 2), top));
    }
  }
}

// Every line a little ahead and in the stream's order, which the multipliers are not read in: the
// processor's own prefetcher follows it best. 6 bits are read in order as it is.
template <WeightFormat Format>
TANDEM_AVX2 inline void touch_ahead(const uint8_t* tile, const PackedStep& place, size_t step) {
  if constexpr (Format == WeightFormat::k4) {
#pragma GCC unroll 8
    for (size_t line = 0; line < 8; ++line) touch(tile + place.low + kAhead + line * 64);
    if (step % 4 == 0) {
      touch(tile + place.scales + 64);
      touch(tile + place.scales + 128);
    }
  }
}

// A group's products of eight rows with both planes, times their scales.
template <WeightFormat Format>
TANDEM_AVX2 inline void add_group(const uint8_t* low, const uint8_t* high, const uint8_t* planes,
                                  size_t group, __m256i scale, __m256i& low_sum,
                                  __m256i& high_sum) {
  __m256i lows = _mm256_setzero_si256();
  __m256i highs = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (size_t c = 0; c < 4; ++c) {
    const size_t chunk = group * 4 + c;
    __m256i first;
    __m256i second;
    unpack<Format>(low, high, chunk, first, second);
    add_bytes(lows, first, broadcast4(planes + chunk * 16));
    add_bytes(highs, first, broadcast4(planes + chunk * 16 + 4));
    add_bytes(lows, second, broadcast4(planes + chunk * 16 + 8));
    add_bytes(highs, second, broadcast4(planes + chunk * 16 + 12));
    if (Format == WeightFormat::k6 || c == 3) {
      add_products(low_sum, lows, scale);
      add_products(high_sum, highs, scale);
      lows = highs = _mm256_setzero_si256();
    }
  }
}

template <WeightFormat Format>
TANDEM_AVX2 void multiply(const MatmulOutput& o, uint32_t tile) {
  const uint8_t* x = o.in.prepared.data();
  const uint8_t* sums = x + size_t{o.in.padded} * 2;
  const uint8_t* w = o.matrix.tile(tile);
  const uint32_t steps = o.in.padded / 64;
  __m256i total[4] = {};
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    __m256i low[2] = {};
    __m256i high[2] = {};
    for (size_t step = begin; step < end; ++step) {
      const PackedStep place = PackedStep::at(Format, steps, step);
      touch_ahead<Format>(w, place, step);
      const uint8_t* planes = x + step * kStepX;
      const __m256i low_planes = broadcast4(sums + step * kStepSums);
      const __m256i high_planes = broadcast4(sums + step * kStepSums + 4);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const GroupMultipliers m = group_multipliers<Format>(w + place.scales, half);
#pragma GCC unroll 2
        for (size_t g = 0; g < 2; ++g) {
          add_group<Format>(w + place.low + half * 32, w + place.high + half * 32, planes, g,
                            pairs(m.scale[g], m.scale[g]), low[half], high[half]);
        }
        const __m256i less = _mm256_slli_epi16(pairs(m.minimum[0], m.minimum[1]), 3);
        low[half] = _mm256_sub_epi32(low[half], _mm256_madd_epi16(less, low_planes));
        high[half] = _mm256_sub_epi32(high[half], _mm256_madd_epi16(less, high_planes));
      }
    }
    for (int half = 0; half < 2; ++half) {
      const __m256i l = low[half];
      const __m256i h = high[half];
      __m256i* sum = total + 2 * half;
      sum[0] = _mm256_add_epi64(
          sum[0], combine_planes(_mm256_castsi256_si128(l), _mm256_castsi256_si128(h)));
      sum[1] = _mm256_add_epi64(
          sum[1], combine_planes(_mm256_extracti128_si256(l, 1), _mm256_extracti128_si256(h, 1)));
    }
  }
  store_rows(o, tile, 0, total);
}

}  // namespace

void matvec4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out) {
  const MatmulOutput o{matrix, in, bias, out, 0};
  const auto product =
      matrix.format == WeightFormat::k4 ? multiply<WeightFormat::k4> : multiply<WeightFormat::k6>;
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) product(o, tile);
}

}  // namespace tandem::kernels::cpu::avx2

#endif
