// Which CPU kernels this machine can run, and the one that is taken.
#include <string>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/kernels.h"
#include "kernels/self_test.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tandem::kernels {
namespace {

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows this one.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

CpuFeatures cpu_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  features.avx2 = __builtin_cpu_supports("avx2") != 0 && has_f16c();
  features.avx512 =
      features.avx2 && __builtin_cpu_supports("avx512f") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
#endif
#if defined(__wasm_simd128__)
  features.simd128 = true;  // a host without it does not load the module
#endif
  return features;
}

Result<std::unique_ptr<Backend>> make_cpu_backend(std::string_view isa,
                                                  std::shared_ptr<ThreadPool> pool) {
  const CpuFeatures features = cpu_features();
  struct Candidate {
    const char* name;
    const cpu::CpuKernels* kernels;
  };
  const Candidate candidates[] = {
      {"avx512", features.avx512 ? cpu::avx512_kernels() : nullptr},
      {"avx2", features.avx2 ? cpu::avx2_kernels() : nullptr},
      {"simd128", features.simd128 ? cpu::simd128_kernels() : nullptr},
      {"scalar", &cpu::scalar_kernels()},
  };
  // The fastest set, or the named one, that answers its known cases rightly. A set that does not is
  // passed over for the next, since that one gives the right bits.
  Error refused = unsupported("no instruction set was tried");
  bool known = isa == "best";
  for (const Candidate& candidate : candidates) {
    if (isa != "best" && isa != candidate.name) continue;
    known = true;
    if (candidate.kernels == nullptr) {
      refused =
          unsupported("this machine or build has no " + std::string(candidate.name) + " kernels");
      continue;
    }
    const Status tested = self_test(candidate.name);
    if (tested.ok()) {
      return std::unique_ptr<Backend>(
          std::make_unique<cpu::CpuBackend>(*candidate.kernels, std::move(pool)));
    }
    refused = tested.error();
  }
  if (!known) {
    return invalid("unknown instruction set '" + std::string(isa) +
                   "': scalar, avx2, avx512, simd128 or best");
  }
  return refused;
}

}  // namespace tandem::kernels
