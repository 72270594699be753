// Which CPU kernels this machine can run, and the one that is taken.
#include <string>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/kernels.h"

namespace tandem::kernels {

CpuFeatures cpu_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  features.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
  features.avx512 =
      features.avx2 && __builtin_cpu_supports("avx512f") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
#endif
  return features;
}

Result<std::unique_ptr<Backend>> make_cpu_backend(std::string_view isa,
                                                  std::shared_ptr<ThreadPool> pool) {
  const CpuFeatures features = cpu_features();
  const cpu::CpuKernels* avx512 = features.avx512 ? cpu::avx512_kernels() : nullptr;
  const cpu::CpuKernels* avx2 = features.avx2 ? cpu::avx2_kernels() : nullptr;
  const cpu::CpuKernels* chosen = nullptr;
  if (isa == "scalar") {
    chosen = &cpu::scalar_kernels();
  } else if (isa == "avx2") {
    chosen = avx2;
  } else if (isa == "avx512") {
    chosen = avx512;
  } else if (isa == "best") {
    chosen = avx512 != nullptr ? avx512 : avx2 != nullptr ? avx2 : &cpu::scalar_kernels();
  } else {
    return invalid("unknown instruction set '" + std::string(isa) +
                   "': scalar, avx2, avx512 or best");
  }
  if (chosen == nullptr) {
    return unsupported("this machine or build has no " + std::string(isa) + " kernels");
  }
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(*chosen, std::move(pool)));
}

}  // namespace tandem::kernels
