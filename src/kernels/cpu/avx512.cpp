// The table of the AVX-512 set.
#include "kernels/cpu/avx512.h"

#include "kernels/cpu/cpu_kernels.h"

namespace tandem::kernels::cpu {

#if defined(__x86_64__)

namespace {

void matmul(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
            uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const auto product = matrix.format == WeightFormat::k8 ? avx512::matmul8 : avx512::matmul4;
  product(matrix, in, tile_begin, tile_end, bias, out, stride);
}

}  // namespace

bool avx512::fetches_streams_ahead() {
  return __builtin_cpu_is("amd") != 0;
}

const CpuKernels* avx512_kernels() {
  static const CpuKernels kernels = {
      "avx512",
      avx512::quantize,
      avx512::rms_norm,
      avx512::layer_norm,
      avx512::prepared_bytes,
      avx512::prepare,
      matmul,
      avx512::add,
      avx512::gated_silu,
      avx512::gelu,
      avx512::to_boundary,
      avx512::from_boundary,
      avx512::rotate,
      avx512::attention,
      avx512::clamped_swiglu,
      avx512::weighted_sum,
      avx512::delta,
      avx512::convolve,
      avx512::unit_vector,
      avx512::gate,
  };
  return &kernels;
}

#else

const CpuKernels* avx512_kernels() {
  return nullptr;
}

#endif

}  // namespace tandem::kernels::cpu
