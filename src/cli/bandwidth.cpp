#include "cli/bandwidth.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem::cli {
namespace {

constexpr uint64_t kPiece = uint64_t{1} << 20;  // what a thread reads at once; a multiple of 512

#if defined(__x86_64__)
__attribute__((target("avx512f"))) uint64_t read_avx512(const uint8_t* bytes, uint64_t count) {
  __m512i sum[4] = {};
  for (uint64_t i = 0; i < count; i += 256) {
    for (uint64_t j = 0; j < 4; ++j) {
      sum[j] = _mm512_or_si512(sum[j], _mm512_loadu_si512(bytes + i + 64 * j));
    }
  }
  for (uint64_t j = 1; j < 4; ++j) sum[0] = _mm512_or_si512(sum[0], sum[j]);
  uint64_t lanes[8];
  std::memcpy(lanes, &sum[0], sizeof lanes);
  for (uint64_t j = 1; j < 8; ++j) lanes[0] |= lanes[j];
  return lanes[0];
}

__attribute__((target("avx2"))) uint64_t read_avx2(const uint8_t* bytes, uint64_t count) {
  __m256i sum[8] = {};
  for (uint64_t i = 0; i < count; i += 256) {
    for (uint64_t j = 0; j < 8; ++j) {
      const auto* at = reinterpret_cast<const __m256i*>(bytes + i + 32 * j);
      sum[j] = _mm256_or_si256(sum[j], _mm256_loadu_si256(at));
    }
  }
  for (uint64_t j = 1; j < 8; ++j) sum[0] = _mm256_or_si256(sum[0], sum[j]);
  uint64_t lanes[4];
  std::memcpy(lanes, &sum[0], sizeof lanes);
  return lanes[0] | lanes[1] | lanes[2] | lanes[3];
}
#endif

uint64_t read_plain(const uint8_t* bytes, uint64_t count) {
  uint64_t sum[8] = {};
  for (uint64_t i = 0; i < count; i += 64) {
    uint64_t words[8];
    std::memcpy(words, bytes + i, sizeof words);
    for (uint64_t j = 0; j < 8; ++j) sum[j] |= words[j];
  }
  for (uint64_t j = 1; j < 8; ++j) sum[0] |= sum[j];
  return sum[0];
}

uint64_t buffer_bytes() {
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const long pages = ::sysconf(_SC_AVPHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  uint64_t wanted = std::max<uint64_t>(4 * static_cast<uint64_t>(std::max(cache, 0L)), 256 << 20);
  const uint64_t available =
      static_cast<uint64_t>(std::max(pages, 0L)) * static_cast<uint64_t>(std::max(page, 0L));
  wanted = std::min({wanted, uint64_t{4} << 30, available / 2});
  return wanted / kPiece * kPiece;
}

}  // namespace

ReadBandwidth::ReadBandwidth(ThreadPool& pool) : pool_(pool) {
  const uint64_t size = buffer_bytes();
  if (size == 0) return;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  ::madvise(memory, size, MADV_HUGEPAGE);
  bytes_ = static_cast<uint8_t*>(memory);
  size_ = size;
  // Written once by the threads that read it, so that the pages exist and lie near them.
  pool_.split(size / kPiece, 1, [&](uint64_t begin, uint64_t end) {
    std::memset(bytes_ + begin * kPiece, 1, (end - begin) * kPiece);
  });
}

ReadBandwidth::~ReadBandwidth() {
  if (bytes_ != nullptr) ::munmap(bytes_, size_);
}

double ReadBandwidth::measure() {
  if (bytes_ == nullptr) return 0;
  auto read = read_plain;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) read = read_avx2;
  if (__builtin_cpu_supports("avx512f") != 0) read = read_avx512;
#endif
  std::atomic<uint64_t> seen{0};
  std::array<double, 5> passes{};
  for (double& pass : passes) {
    const auto start = std::chrono::steady_clock::now();
    pool_.split(size_ / kPiece, 1, [&](uint64_t begin, uint64_t end) {
      seen |= read(bytes_ + begin * kPiece, (end - begin) * kPiece);
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    pass = static_cast<double>(size_) / time.count();
  }
  std::nth_element(passes.begin(), passes.begin() + passes.size() / 2, passes.end());
  return seen == 0 ? 0 : passes[passes.size() / 2];
}

}  // namespace tandem::cli
