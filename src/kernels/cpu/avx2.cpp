// The table of the AVX2 set, and its prepared activations.
#include "kernels/cpu/avx2.h"

#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/cpu_kernels.h"

namespace tandem::kernels::cpu {

#if defined(__x86_64__)

namespace avx2 {
namespace {

// The sums of one group's planes, as avx2.h says.
void store_sums(uint8_t* step, uint32_t group, int32_t low, int32_t high) {
  const int32_t sum = low + 256 * high;
  const auto lower = static_cast<int16_t>(8 * sum);
  const int16_t parts[4] = {static_cast<int16_t>(low), static_cast<int16_t>(high), lower,
                            static_cast<int16_t>((8 * sum - lower) >> 16)};
  for (uint32_t i = 0; i < 4; ++i) std::memcpy(step + i * 4 + group * 2, &parts[i], 2);
  const int32_t less = -32 * sum;
  std::memcpy(step + 16 + group * 4, &less, 4);
}

TANDEM_AVX2 int64_t prepare_token(const int16_t* values, uint32_t padded, uint8_t* planes) {
  uint8_t* sums = planes + size_t{padded} * 2;
  uint8_t* pairs = planes + pairs_offset(padded);
  // Of four 16-bit values the inner two change places.
  const __m256i crossed = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  // Bytes 0, 2, 4, 6 and 1, 3, 5, 7 of eight: four low ones, then four high ones.
  const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,  //
                                         0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const __m256i upper = _mm256_set1_epi16(static_cast<int16_t>(0xff00));
  int64_t total = 0;
  for (uint32_t k = 0; k < padded; k += 32) {
    __m256i group = _mm256_setzero_si256();  // low and high sums in turn
    for (uint32_t i = 0; i < 32; i += 16) {
      const __m256i x = load(values + k + i);
      // Adding 128 carries into the upper byte just when the lower one is negative.
      const __m256i carried = _mm256_add_epi16(x, _mm256_set1_epi16(128));
      const __m256i both = _mm256_shuffle_epi8(_mm256_blendv_epi8(x, carried, upper), order);
      store(planes + size_t{k + i} * 2, both);
      store(pairs + size_t{k + i} * 2, _mm256_shuffle_epi8(x, crossed));
      group = _mm256_add_epi32(
          group,
          _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), both), _mm256_set1_epi16(1)));
    }
    int32_t lanes[8];
    store(lanes, group);
    const int32_t low = lanes[0] + lanes[2] + lanes[4] + lanes[6];
    const int32_t high = lanes[1] + lanes[3] + lanes[5] + lanes[7];
    store_sums(sums + k / 64 * kStepSums, k / 32 % 2, low, high);
    total += low + 256 * int64_t{high};
  }
  return total;
}

void matmul(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
            uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const auto product = matrix.format == WeightFormat::k8 ? matmul8 : matmul4;
  product(matrix, in, tile_begin, tile_end, bias, out, stride);
}

}  // namespace

size_t prepared_bytes(uint32_t padded) {
  const size_t lines = pairs_offset(padded) / 64 + padded / 32;
  return (lines | 1) * 64;
}

void prepare(ActivationRows& rows, uint32_t begin, uint32_t end) {
  const size_t bytes = prepared_bytes(rows.padded);
  for (uint32_t t = begin; t < end; ++t) {
    rows.sums[t] = prepare_token(rows.values.data() + size_t{t} * rows.padded, rows.padded,
                                 rows.prepared.data() + t * bytes);
  }
}

}  // namespace avx2

const CpuKernels* avx2_kernels() {
  static const CpuKernels kernels = {
      "avx2",
      avx2::quantize,
      avx2::rms_norm,
      avx2::layer_norm,
      avx2::prepared_bytes,
      avx2::prepare,
      avx2::matmul,
      avx2::add,
      avx2::gated_silu,
      avx2::gelu,
      avx2::to_boundary,
      avx2::from_boundary,
      avx2::rotate,
      avx2::attention,
      avx2::clamped_swiglu,
      avx2::weighted_sum,
      avx2::delta,
      avx2::convolve,
      avx2::unit_vector,
      avx2::gate,
  };
  return &kernels;
}

#else

const CpuKernels* avx2_kernels() {
  return nullptr;
}

#endif

}  // namespace tandem::kernels::cpu
