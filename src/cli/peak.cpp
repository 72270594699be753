#include "cli/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace tandem::cli {
namespace {

#if defined(__x86_64__)
constexpr uint64_t kRounds = 400'000;
constexpr uint64_t kSums = 12;  // in flight at once: more than latency times throughput

// In assembly, with registers of its own: compilers see that the sums are of constants, and GCC 12
// keeps an array of them in memory.
__attribute__((target("avx512f,avx512vnni"))) void run_avx512() {
  uint64_t rounds = kRounds;
  asm volatile(
      "1:\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm2\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm3\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm4\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm5\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm6\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm7\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm8\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm9\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm10\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm11\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm12\n"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm13\n"
      "dec %0\n"
      "jnz 1b\n"
      : "+r"(rounds)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13");
}

#if defined(__linux__)
// Tiles that are full: 16,384 products an instruction.
constexpr uint64_t kTileRounds = kRounds / 8;
void run_amx() {
  struct alignas(64) Configuration {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
  } const configuration;
  uint64_t rounds = kTileRounds;
  asm volatile(
      "ldtilecfg %1\n"
      "1:\n"
      "tdpbsud %%tmm5, %%tmm4, %%tmm0\n"
      "tdpbsud %%tmm5, %%tmm4, %%tmm1\n"
      "tdpbsud %%tmm5, %%tmm4, %%tmm2\n"
      "tdpbsud %%tmm5, %%tmm4, %%tmm3\n"
      "dec %0\n"
      "jnz 1b\n"
      "tilerelease\n"
      : "+r"(rounds)
      : "m"(configuration)
      : "cc");
}
#endif

// A product goes to ymm14 or 15, since the sum is an instruction of its own.
__attribute__((target("avx2"))) void run_avx2() {
  uint64_t rounds = kRounds;
  asm volatile(
      "1:\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm14\n"
      "vpaddd %%ymm14, %%ymm2, %%ymm2\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm15\n"
      "vpaddd %%ymm15, %%ymm3, %%ymm3\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm14\n"
      "vpaddd %%ymm14, %%ymm4, %%ymm4\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm15\n"
      "vpaddd %%ymm15, %%ymm5, %%ymm5\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm14\n"
      "vpaddd %%ymm14, %%ymm6, %%ymm6\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm15\n"
      "vpaddd %%ymm15, %%ymm7, %%ymm7\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm14\n"
      "vpaddd %%ymm14, %%ymm8, %%ymm8\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm15\n"
      "vpaddd %%ymm15, %%ymm9, %%ymm9\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm14\n"
      "vpaddd %%ymm14, %%ymm10, %%ymm10\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm15\n"
      "vpaddd %%ymm15, %%ymm11, %%ymm11\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm14\n"
      "vpaddd %%ymm14, %%ymm12, %%ymm12\n"
      "vpmaddwd %%ymm0, %%ymm1, %%ymm15\n"
      "vpaddd %%ymm15, %%ymm13, %%ymm13\n"
      "dec %0\n"
      "jnz 1b\n"
      : "+r"(rounds)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

// A set's loop, and the products of an 8-bit and a 16-bit number that one call of it makes.
struct Loop {
  void (*run)();
  double products;
};

Loop find_loop(std::string_view isa) {
#if defined(__linux__)
  if (isa == "amx") return {run_amx, 16384.0 / 2 * 4 * kTileRounds};
#endif
  // 64 products a VNNI instruction, and two of them for both byte planes, as in AMX.
  if (isa == "avx512") return {run_avx512, 32.0 * kSums * kRounds};
  if (isa == "avx2") return {run_avx2, 16.0 * kSums * kRounds};
  return {nullptr, 0};
}
#endif

}  // namespace

double multiply_add_peak(ThreadPool& pool, std::string_view isa) {
#if defined(__x86_64__)
  const Loop loop = find_loop(isa);
  if (loop.run == nullptr) return 0;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const uint64_t pieces = uint64_t{pool.threads()} * 4;
    const auto start = std::chrono::steady_clock::now();
    pool.split(pieces, 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) loop.run();
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, loop.products * static_cast<double>(pieces) / time.count());
  }
  return best;
#else
  (void)pool;
  (void)isa;
  return 0;
#endif
}

}  // namespace tandem::cli
