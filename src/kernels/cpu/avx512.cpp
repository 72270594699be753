// The table of the AVX-512 set.
#include "kernels/cpu/avx512.h"

namespace tandem::kernels::cpu {

#if defined(__x86_64__)

namespace {

void matmul(const PackedMatrix& matrix, const ActivationRows& in, uint32_t tile_begin,
            uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const auto product = matrix.format == WeightFormat::k8 ? avx512::matmul8 : avx512::matmul4;
  product(matrix, in, tile_begin, tile_end, bias, out, stride);
}

CpuKernels make() {
  CpuKernels kernels = scalar_kernels();
  kernels.isa = "avx512";
  kernels.prepared_bytes = avx512::prepared_bytes;
  kernels.prepare = avx512::prepare;
  kernels.matmul = matmul;
  return kernels;
}

}  // namespace

const CpuKernels* avx512_kernels() {
  static const CpuKernels kernels = make();
  return &kernels;
}

#else

const CpuKernels* avx512_kernels() {
  return nullptr;
}

#endif

}  // namespace tandem::kernels::cpu
