#include "cli/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem::cli {
namespace {

#if defined(__x86_64__)
constexpr uint64_t kRounds = 400'000;
constexpr uint64_t kSums = 12;  // in flight at once: more than latency times throughput

uint64_t first_lane(const void* vector) {
  uint64_t lane = 0;
  std::memcpy(&lane, vector, sizeof lane);
  return lane;
}

// Instructions, so that no compiler sees that the sums are of constants.
__attribute__((target("avx512f,avx512vnni"))) uint64_t run_avx512() {
  __m512i sums[kSums] = {};
  const __m512i a = _mm512_set1_epi32(0x01020304);
  const __m512i b = _mm512_set1_epi32(0x02010403);
  for (uint64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (uint64_t j = 0; j < kSums; ++j) {
      asm volatile("vpdpbusd %2, %1, %0" : "+v"(sums[j]) : "v"(a), "v"(b));
    }
  }
  for (uint64_t i = 1; i < kSums; ++i) sums[0] = _mm512_or_si512(sums[0], sums[i]);
  return first_lane(&sums[0]);
}

__attribute__((target("avx2"))) uint64_t run_avx2() {
  __m256i sums[kSums] = {};
  const __m256i a = _mm256_set1_epi32(0x00020003);
  const __m256i b = _mm256_set1_epi32(0x00010004);
  for (uint64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (uint64_t j = 0; j < kSums; ++j) {
      __m256i product;
      asm volatile("vpmaddwd %2, %1, %0" : "=v"(product) : "v"(a), "v"(b));
      sums[j] = _mm256_add_epi32(sums[j], product);
    }
  }
  for (uint64_t i = 1; i < kSums; ++i) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
  return first_lane(&sums[0]);
}
#endif

}  // namespace

double multiply_add_peak(ThreadPool& pool, std::string_view isa) {
#if defined(__x86_64__)
  const bool wide = isa == "avx512";
  if (!wide && isa != "avx2") return 0;
  // 64 products a VNNI instruction, and two of them for both byte planes.
  const double products = wide ? 32 : 16;
  std::atomic<uint64_t> seen{0};
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const uint64_t pieces = uint64_t{pool.threads()} * 4;
    const auto start = std::chrono::steady_clock::now();
    pool.split(pieces, 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) seen += wide ? run_avx512() : run_avx2();
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, products * static_cast<double>(kSums * kRounds * pieces) / time.count());
  }
  return seen == 0 ? 0 : best;
#else
  (void)pool;
  (void)isa;
  return 0;
#endif
}

}  // namespace tandem::cli
