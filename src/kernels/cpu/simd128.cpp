// The table of the SIMD128 set, and its prepared activations.
#include "kernels/cpu/simd128.h"

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd128_vector.h"

namespace tandem::kernels::cpu {

#if defined(__wasm_simd128__)

namespace simd128 {
namespace {

TANDEM_KERNEL int64_t prepare_token(const int16_t* values, uint32_t padded, uint8_t* sums) {
  const v128_t ones = wasm_i16x8_const_splat(1);
  int64_t total = 0;
  for (uint32_t k = 0; k < padded; k += 32) {
    v128_t group = wasm_i32x4_const_splat(0);
    for (uint32_t i = 0; i < 32; i += 8) {
      group = wasm_i32x4_add(group, wasm_i32x4_dot_i16x8(load(values + k + i), ones));
    }
    const int32_t sum = wasm_i32x4_extract_lane(group, 0) + wasm_i32x4_extract_lane(group, 1) +
                        wasm_i32x4_extract_lane(group, 2) + wasm_i32x4_extract_lane(group, 3);
    std::memcpy(sums + k / 32 * sizeof(sum), &sum, sizeof(sum));
    total += sum;
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
  return size_t{padded} / 32 * sizeof(int32_t);
}

void prepare(ActivationRows& rows, uint32_t begin, uint32_t end) {
  const size_t bytes = prepared_bytes(rows.padded);
  for (uint32_t t = begin; t < end; ++t) {
    rows.sums[t] = prepare_token(rows.values.data() + size_t{t} * rows.padded, rows.padded,
                                 rows.prepared.data() + t * bytes);
  }
}

}  // namespace simd128

const CpuKernels* simd128_kernels() {
  static constexpr CpuKernels kKernels = {
      "simd128",
      simd128::quantize,
      simd128::rms_norm,
      simd128::layer_norm,
      simd128::prepared_bytes,
      simd128::prepare,
      simd128::matmul,
      simd128::add,
      simd128::gated_silu,
      simd128::gelu,
      simd128::to_boundary,
      simd128::from_boundary,
      simd128::rotate,
      simd128::attention,
      simd128::clamped_swiglu,
      simd128::weighted_sum,
  };
  return &kKernels;
}

#else

const CpuKernels* simd128_kernels() {
  return nullptr;
}

#endif

}  // namespace tandem::kernels::cpu
