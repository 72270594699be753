// Products of 4-bit weights with one token, with AVX-512 VNNI: what decoding spends its time on.
//
// The sums of avx512_matmul4.cpp with fewer instructions, since those of the products (32 of a step
// of 64 columns and 16 rows) and the others share ports:
// - A byte's upper quant is not shifted down: as q * 16 it is multiplied too, and the sum over a
//   group's 16 such columns shifted.
// - Half a group's sum fits 16 bits (16 * 15 * 128 = 30720), so those of both groups make a pair,
//   and one vpdpwssd multiplies them by their scales and adds.
// - The minimums are summed apart, and multiplied by 8 at the end of a segment: at most
//   128 groups * 63 * 32 * 128 * 8 = 264,241,152.
#include "kernels/cpu/avx512_multipliers.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {
namespace {

constexpr size_t kStepX = 128;      // of planes for 64 columns
constexpr size_t kAhead = 512;      // bytes that are touched early, where streams are fetched ahead
constexpr size_t kFarAhead = 2048;  // and where they are not
constexpr uint32_t kSegment = 64;   // steps until a sum is widened
constexpr __mmask32 kUpper = 0xaaaaaaaa;

// Scales and minimums of a step's two groups as pairs of 16 bits.
struct Pairs {
  __m512i scales;
  __m512i minimums;
};

TANDEM_AVX512 inline Pairs read_pairs(const uint8_t* scales) {
  const __m512i bytes = _mm512_or_si512(widen(scales), _mm512_slli_epi32(widen(scales + 16), 16));
  // minimum 0 >> 2 to bits 2 to 5, minimum 1 >> 2 to bits 18 to 21: times 2^2 + 2^14.
  const __m512i rest = _mm512_madd_epi16(widen(scales + 32), _mm512_set1_epi32(0x4004));
  return {_mm512_and_si512(bytes, _mm512_set1_epi32(0x003f003f)),
          _mm512_or_si512(_mm512_and_si512(rest, _mm512_set1_epi32(0x003c003c)),
                          _mm512_srli_epi16(bytes, 6))};
}

// A plane's sums of a group's columns, those of upper quants 16 times.
struct GroupSums {
  __m512i lower;
  __m512i upper;
};

TANDEM_AVX512 inline void add_groups(__m512i& sum, const GroupSums* groups, __m512i scales) {
  add_pairs(
      sum, scales,
      _mm512_mask_blend_epi16(kUpper, groups[0].lower, _mm512_slli_epi32(groups[1].lower, 16)));
  add_pairs(sum, scales,
            _mm512_mask_blend_epi16(kUpper, _mm512_srli_epi32(groups[0].upper, 4),
                                    _mm512_slli_epi32(groups[1].upper, 12)));
}

TANDEM_AVX512 void multiply(const MatmulOutput& o, uint32_t tile, size_t bytes_ahead) {
  const uint8_t* x = o.in.prepared.data();
  const uint8_t* sums = x + size_t{o.in.padded} * 2;
  const uint8_t* w = o.matrix.tile(tile);
  const uint8_t* soon = w + bytes_ahead;
  const uint32_t steps = o.in.padded / 64;
  const __m512i lower = _mm512_set1_epi8(15);
  const __m512i upper = _mm512_set1_epi8(static_cast<char>(0xf0));
  __m512i total[2] = {};
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    __m512i low = _mm512_setzero_si512();
    __m512i high = _mm512_setzero_si512();
    __m512i low_minimums = _mm512_setzero_si512();
    __m512i high_minimums = _mm512_setzero_si512();
    for (size_t step = begin; step < end; ++step) {
      const PackedStep place = PackedStep::at(WeightFormat::k4, steps, step);
      // Every line a little ahead and in the stream's order, which the multipliers are not read in:
      // the processor's own prefetcher follows it best.
#pragma GCC unroll 8
      for (size_t line = 0; line < 8; ++line) touch(soon + place.low + line * 64);
      if (step % 4 == 0) {
        touch(w + place.scales + 64);
        touch(w + place.scales + 128);
      }
      const Pairs pairs = read_pairs(w + place.scales);
      GroupSums low_sums[2] = {};
      GroupSums high_sums[2] = {};
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          const int chunk = g * 4 + c;
          const uint8_t* planes = x + step * kStepX + chunk * 16;
          const __m512i bytes = _mm512_loadu_si512(w + place.low + chunk * 64);
          const __m512i first = _mm512_and_si512(bytes, lower);
          const __m512i second = _mm512_and_si512(bytes, upper);
          add_products(low_sums[g].lower, first, planes);
          add_products(high_sums[g].lower, first, planes + 4);
          add_products(low_sums[g].upper, second, planes + 8);
          add_products(high_sums[g].upper, second, planes + 12);
        }
      }
      add_groups(low, low_sums, pairs.scales);
      add_groups(high, high_sums, pairs.scales);
      add_pairs(low_minimums, pairs.minimums, sums + step * 8);
      add_pairs(high_minimums, pairs.minimums, sums + step * 8 + 4);
    }
    const __m512i l = _mm512_sub_epi32(low, _mm512_slli_epi32(low_minimums, 3));
    const __m512i h = _mm512_sub_epi32(high, _mm512_slli_epi32(high_minimums, 3));
    total[0] = _mm512_add_epi64(
        total[0], combine_planes(_mm512_castsi512_si256(l), _mm512_castsi512_si256(h)));
    total[1] = _mm512_add_epi64(
        total[1], combine_planes(_mm512_extracti64x4_epi64(l, 1), _mm512_extracti64x4_epi64(h, 1)));
  }
  store_rows(o, tile, 0, total[0], total[1]);
}

}  // namespace

void matvec4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out) {
  const MatmulOutput o{matrix, in, bias, out, 0};
  const size_t bytes_ahead = fetches_streams_ahead() ? kAhead : kFarAhead;
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) multiply(o, tile, bytes_ahead);
}

}  // namespace tandem::kernels::cpu::avx512

#endif
