// Which CPU kernels this machine can run, and the one that is taken.
#include <string>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/kernels.h"
#include "kernels/self_test.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "kernels/cpu/amx.h"
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
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

#if defined(__x86_64__) && defined(__linux__)
bool has_amx() {
  constexpr unsigned kTile = 1U << 24;
  constexpr unsigned kInt8 = 1U << 25;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTile) != 0 && (d & kInt8) != 0 &&
         cpu::amx::permitted();
}
#endif

#if defined(__aarch64__) && defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
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
#if defined(__linux__)
  features.amx = features.avx512 && has_amx();
#endif
#elif defined(__aarch64__)
  features.neon = true;
#if defined(__linux__)
  features.dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  features.i8mm = features.dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#elif defined(__APPLE__)
  features.dotprod = has_feature("hw.optional.arm.FEAT_DotProd");
  features.i8mm = features.dotprod && has_feature("hw.optional.arm.FEAT_I8MM");
#endif
#endif
#if defined(__wasm_simd128__)
  features.simd128 = true;  // a host without it does not load the module
#endif
  return features;
}

namespace cpu {

std::span<const KernelSet> kernel_sets() {
  static const CpuFeatures features = cpu_features();
  static const KernelSet sets[] = {
      {"i8mm", features.i8mm ? i8mm_kernels() : nullptr},
      {"dotprod", features.dotprod ? dotprod_kernels() : nullptr},
      {"neon", features.neon ? neon_kernels() : nullptr},
      {"amx", features.amx ? amx_kernels() : nullptr},
      {"avx512", features.avx512 ? avx512_kernels() : nullptr},
      {"avx2", features.avx2 ? avx2_kernels() : nullptr},
      {"simd128", features.simd128 ? simd128_kernels() : nullptr},
      {"scalar", &scalar_kernels()},
  };
  return sets;
}

std::string kernel_set_names() {
  std::string names;
  for (const KernelSet& set : kernel_sets()) {
    names += (names.empty() ? "" : ", ") + std::string(set.name);
  }
  return names;
}

Result<const CpuKernels*> find_kernels(std::string_view name) {
  for (const KernelSet& set : kernel_sets()) {
    if (name != set.name) continue;
    if (set.kernels != nullptr) return set.kernels;
    return unsupported("this machine or build has no " + std::string(name) + " kernels");
  }
  return invalid("unknown instruction set '" + std::string(name) + "': " + kernel_set_names());
}

}  // namespace cpu

Result<std::unique_ptr<Backend>> make_cpu_backend(std::string_view isa,
                                                  std::shared_ptr<ThreadPool> pool) {
  // The fastest set, or the named one, that answers its known cases rightly. A set that does not is
  // passed over for the next, since that one gives the right bits.
  if (isa != "best") {
    TANDEM_ASSIGN(const cpu::CpuKernels* kernels, cpu::find_kernels(isa));
    const Status tested = self_test(isa);
    if (!tested.ok()) return tested.error();
    return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(*kernels, std::move(pool)));
  }
  Error refused = unsupported("no instruction set was tried");
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (set.kernels == nullptr) continue;
    const Status tested = self_test(set.name);
    if (tested.ok()) {
      return std::unique_ptr<Backend>(
          std::make_unique<cpu::CpuBackend>(*set.kernels, std::move(pool)));
    }
    refused = tested.error();
  }
  return refused;
}

}  // namespace tandem::kernels
