// Activations in the form that the products read: two planes of signed bytes, and their sums.
#include <cstring>

#include "kernels/cpu/avx512.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {

TANDEM_AVX512 int64_t prepare_token(const int16_t* values, uint32_t padded, uint8_t* planes) {
  uint8_t* sums = planes + size_t{padded} * 2;
  // Bytes 0, 2, 4, 6 and 1, 3, 5, 7 of eight: four low ones, then four high ones.
  const __m512i order = _mm512_set4_epi32(0x0f0d0b09, 0x0e0c0a08, 0x07050301, 0x06040200);
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i low_total = _mm512_setzero_si512();
  __m512i high_total = _mm512_setzero_si512();
  for (uint32_t k = 0; k < padded; k += 64) {
    // Sums of low and high bytes in turn, one pair of groups.
    __m512i group[2];
    for (uint32_t g = 0; g < 2; ++g) {
      const __m512i x = _mm512_loadu_si512(values + k + g * 32);
      // high = (x - low) >> 8 and low = x's lower byte as a signed one: adding 128 carries into
      // the upper byte just when the lower is negative. |x| <= kMaxActivation: no overflow.
      const __m512i carried = _mm512_add_epi16(x, _mm512_set1_epi16(128));
      const __m512i bytes = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaULL, x, carried);
      const __m512i both = _mm512_shuffle_epi8(bytes, order);
      _mm512_storeu_si512(planes + size_t{k} * 2 + g * 64, both);
      group[g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, both);
    }
    // Even lanes are low, odd lanes high; |sum of 32 bytes| <= 4096.
    int16_t* out = reinterpret_cast<int16_t*>(sums) + k / 64 * 4;
    constexpr __mmask16 kLow = 0x5555;
    constexpr __mmask16 kHigh = 0xaaaa;
    const int low0 = _mm512_mask_reduce_add_epi32(kLow, group[0]);
    const int low1 = _mm512_mask_reduce_add_epi32(kLow, group[1]);
    const int high0 = _mm512_mask_reduce_add_epi32(kHigh, group[0]);
    const int high1 = _mm512_mask_reduce_add_epi32(kHigh, group[1]);
    out[0] = static_cast<int16_t>(low0);
    out[1] = static_cast<int16_t>(low1);
    out[2] = static_cast<int16_t>(high0);
    out[3] = static_cast<int16_t>(high1);
    const __m512i both = _mm512_add_epi32(group[0], group[1]);
    low_total = _mm512_mask_add_epi32(low_total, kLow, low_total, both);
    high_total = _mm512_mask_add_epi32(high_total, kHigh, high_total, both);
  }
  return int64_t{_mm512_reduce_add_epi32(low_total)} +
         256 * int64_t{_mm512_reduce_add_epi32(high_total)};
}

size_t prepared_bytes(uint32_t padded) {
  const size_t lines = copy_offset(padded) / 64 + padded / 32;
  return (lines | 1) * 64;
}

void prepare(ActivationRows& rows, uint32_t begin, uint32_t end) {
  const size_t bytes = prepared_bytes(rows.padded);
  for (uint32_t t = begin; t < end; ++t) {
    const int16_t* values = rows.values.data() + size_t{t} * rows.padded;
    uint8_t* prepared = rows.prepared.data() + t * bytes;
    rows.sums[t] = prepare_token(values, rows.padded, prepared);
    if (rows.tokens >= kFewestPanelTokens) {
      std::memcpy(prepared + copy_offset(rows.padded), values, size_t{rows.padded} * 2);
    }
  }
}

}  // namespace tandem::kernels::cpu::avx512

#endif
