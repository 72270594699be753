#include "kernels/cpu/cpu_kernels.h"

namespace tandem::kernels::cpu {

const CpuKernels* avx2_kernels() {
  return nullptr;
}

}  // namespace tandem::kernels::cpu
