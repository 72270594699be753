#include "weights/checksum.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem::weights {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kStep = 0x9fb21c651e98df25U;  // odd, with its bits well spread
constexpr uint64_t kFirst[8] = {0xbf58476d1ce4e5b9U, 0x94d049bb133111ebU, 0xd6e8feb86659fd93U,
                                0xc2b2ae3d27d4eb4fU, 0x165667b19e3779f9U, 0x27d4eb2f165667c5U,
                                0xa0761d6478bd642fU, 0xe7037ed1a0b428dbU};

// Adds `lines` lines, of which the first has the number `number`.
void add_plain(LineSums& sums, const std::byte* bytes, uint64_t lines, uint64_t number) {
  for (uint64_t i = 0; i < lines; ++i) {
    uint64_t words[8];
    std::memcpy(words, bytes + i * kLine, kLine);
    for (uint64_t j = 0; j < 8; ++j) {
      const uint64_t x = words[j] + kFirst[j] + (number + i) * kStep;
      sums[j] += (x & 0xffffffffU) * (x >> 32) + words[j ^ 1];
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void add_avx2(LineSums& sums, const std::byte* bytes,
                                              uint64_t lines, uint64_t number) {
  const __m256i step = _mm256_set1_epi64x(static_cast<int64_t>(kStep));
  const __m256i start = _mm256_set1_epi64x(static_cast<int64_t>(number * kStep));
  __m256i key[2];
  __m256i sum[2];
  for (int half = 0; half < 2; ++half) {
    key[half] = _mm256_add_epi64(
        start, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirst + 4 * half)));
    sum[half] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums.data() + 4 * half));
  }
  for (uint64_t i = 0; i < lines; ++i) {
    for (int half = 0; half < 2; ++half) {
      const __m256i w = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(bytes + i * kLine + uint64_t{32} * half));
      const __m256i x = _mm256_add_epi64(w, key[half]);
      const __m256i product = _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32));
      const __m256i neighbours = _mm256_shuffle_epi32(w, 0x4e);
      sum[half] = _mm256_add_epi64(sum[half], _mm256_add_epi64(product, neighbours));
      key[half] = _mm256_add_epi64(key[half], step);
    }
  }
  for (int half = 0; half < 2; ++half) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums.data() + 4 * half), sum[half]);
  }
}
#endif

using Add = void (*)(LineSums& sums, const std::byte* bytes, uint64_t lines, uint64_t number);

Add best_add() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) return add_avx2;
#endif
  return add_plain;
}

LineSums sums_with(Add add, std::span<const std::byte> bytes) {
  LineSums sums{};
  const uint64_t whole = bytes.size() / kLine;
  add(sums, bytes.data(), whole, 0);
  if (const uint64_t rest = bytes.size() % kLine; rest != 0) {
    std::array<std::byte, kLine> last{};
    std::memcpy(last.data(), bytes.data() + whole * kLine, rest);
    add(sums, last.data(), 1, whole);
  }
  return sums;
}

}  // namespace

LineSums line_sums(std::span<const std::byte> bytes) {
  static const Add add = best_add();
  return sums_with(add, bytes);
}

LineSums line_sums_by(const char* isa, std::span<const std::byte> bytes) {
  return sums_with(std::string_view(isa) == "plain" ? add_plain : best_add(), bytes);
}

Digest checksum(std::span<const std::byte> bytes, ThreadPool& pool) {
  const uint64_t blocks = (bytes.size() + kChecksumBlock - 1) / kChecksumBlock;
  std::vector<LineSums> sums(blocks);
  pool.split(blocks, 4, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t offset = i * kChecksumBlock;
      sums[i] = line_sums(
          bytes.subspan(offset, std::min<uint64_t>(kChecksumBlock, bytes.size() - offset)));
    }
  });
  return checksum(bytes.size(), sums);
}

Digest checksum(uint64_t length, std::span<const LineSums> blocks) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(&length, 1)));
  hash.update(std::as_bytes(blocks));
  return hash.digest();
}

}  // namespace tandem::weights
