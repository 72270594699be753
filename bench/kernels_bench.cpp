// Measures the CPU kernels on this machine: what share of the memory's read bandwidth one-token
// products reach, how many multiply-adds a second many-token products reach, and attention.
// Usage: kernels_bench [isa] [threads] [k8 | k4 | k6 | attention | context]; context prints the
// time of one token's attention against its context as JSON, for bench/plot.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/kernels.h"

namespace {

using namespace tandem;
using namespace tandem::kernels;
using namespace tandem::kernels::cpu;

const char* name_of(WeightFormat format) {
  return format == WeightFormat::k8 ? "k8" : format == WeightFormat::k4 ? "k4" : "k6";
}

// Seconds of the fastest call in 0.6 s of calls: the one that other processes disturbed least.
template <typename Body>
double seconds(Body&& body) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  body();
  const auto end = Clock::now() + std::chrono::milliseconds(600);
  auto start = Clock::now();
  do {
    body();
    const auto now = Clock::now();
    best = std::min(best, std::chrono::duration<double>(now - start).count());
    start = now;
  } while (start < end);
  return best;
}

uint64_t read_all(const uint8_t* data, size_t bytes) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 64 <= bytes; i += 64) {
    uint64_t words[8];
    std::memcpy(words, data + i, 64);
    for (int w = 0; w < 8; ++w) sums[w] += words[w];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

volatile uint64_t g_sink;

// Bytes a second of reading memory far larger than every cache.
double bandwidth(ThreadPool& pool, const AlignedArray<uint8_t>& memory) {
  const uint64_t piece = 1 << 20;
  return static_cast<double>(memory.size()) / seconds([&] {
           pool.split(memory.size() / piece, 8, [&](uint64_t begin, uint64_t end) {
             g_sink = read_all(memory.data() + begin * piece, (end - begin) * piece);
           });
         });
}

// Weights as quantizing makes them of normal ones: how large they are together decides how 4- and
// 6-bit products are summed.
PackedMatrix random_matrix(WeightFormat format, uint32_t rows, uint32_t columns) {
  PackedMatrix matrix = make_packed(format, rows, columns);
  std::mt19937_64 random(rows + columns);
  // The sum of four bytes: near enough to a normal distribution, within four deviations.
  const auto normal = [&random](int limit) {
    const uint64_t bits = random();
    int sum = -510;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>(bits >> (8 * i) & 255);
    return sum * limit / 510;
  };
  std::vector<int8_t> weights(columns);
  std::vector<uint8_t> quants(columns);
  std::vector<uint8_t> scales((columns + 31) / 32);
  std::vector<uint8_t> minimums(scales.size());
  for (uint32_t row = 0; row < rows; ++row) {
    const int middle = format == WeightFormat::k4 ? 8 : 32;
    for (uint32_t k = 0; k < columns; ++k) {
      if (format == WeightFormat::k8) {
        weights[k] = static_cast<int8_t>(normal(127));
      } else {
        quants[k] = static_cast<uint8_t>(middle + normal(middle - 1));
      }
    }
    for (size_t g = 0; g < scales.size(); ++g) {
      scales[g] = static_cast<uint8_t>((format == WeightFormat::k4 ? 30 : 60) + random() % 34);
      minimums[g] = scales[g];
    }
    if (format == WeightFormat::k8) store_row8(matrix, row, weights, 0.01F);
    if (format == WeightFormat::k4) store_row4(matrix, row, quants, scales, minimums, 0.01F);
    if (format == WeightFormat::k6) store_row6(matrix, row, quants, scales, 0.01F);
  }
  return matrix;
}

PackedMatrix copy_of(const PackedMatrix& matrix) {
  PackedMatrix copy = make_packed(matrix.format, matrix.rows, matrix.columns);
  std::memcpy(copy.data.data(), matrix.data.data(), matrix.data.size());
  std::copy(matrix.row_scales.begin(), matrix.row_scales.end(), copy.row_scales.begin());
  return copy;
}

ActivationRows random_rows(const CpuKernels& set, uint32_t columns, uint32_t tokens) {
  ActivationRows rows;
  rows.columns = columns;
  rows.padded = padded_columns(columns);
  rows.tokens = tokens;
  rows.values = AlignedArray<int16_t>(size_t{tokens} * rows.padded);
  rows.prepared = AlignedArray<uint8_t>(tokens * set.prepared_bytes(rows.padded));
  rows.exponents.assign(tokens, -10);
  rows.sums.assign(tokens, 0);
  std::mt19937 random(columns);
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t k = 0; k < columns; ++k) {
      rows.values[size_t{t} * rows.padded + k] =
          static_cast<int16_t>(static_cast<int32_t>(random() % 60001U) - 30000);
    }
  }
  set.prepare(rows, 0, tokens);
  return rows;
}

void bench_matmul(const CpuKernels& set, ThreadPool& pool, double peak, WeightFormat format,
                  uint32_t rows, uint32_t columns) {
  std::vector<PackedMatrix> matrices;
  const uint64_t bytes = PackedMatrix::bytes_for(format, rows, columns);
  // More copies than the last cache can hold, so that each pass reads memory.
  const uint64_t copies = std::max<uint64_t>(1, (uint64_t{1} << 29) / bytes);
  matrices.push_back(random_matrix(format, rows, columns));
  while (matrices.size() < copies) matrices.push_back(copy_of(matrices.front()));
  const uint32_t tiles = tile_count(rows);
  std::printf("%s %u x %u\n", name_of(format), rows, columns);
  for (const uint32_t tokens : {1U, 2U, 3U, 4U, 6U, 9U, 12U, 16U, 24U, 32U, 48U, 64U, 512U}) {
    const ActivationRows x = random_rows(set, columns, tokens);
    std::vector<float> out(size_t{tokens} * rows);
    size_t turn = 0;
    const uint64_t grain = std::max<uint64_t>(1, tiles / (uint64_t{pool.threads()} * 4));
    const double time = seconds([&] {
      const PackedMatrix& matrix = matrices[turn++ % copies];
      pool.split(tiles, grain, [&](uint64_t begin, uint64_t end) {
        set.matmul(matrix, x, static_cast<uint32_t>(begin), static_cast<uint32_t>(end), nullptr,
                   out.data(), rows);
      });
    });
    const double speed = static_cast<double>(bytes) / time;
    std::printf("  %4u tokens  %8.1f us  %6.1f GB/s (%3.0f %% of reading)  %7.1f GMAC/s\n", tokens,
                time * 1e6, speed * 1e-9, speed / peak * 100,
                1e-9 * rows * columns * tokens / time);
  }
}

// One layer's attention of 8 kv heads of 128 channels, four query heads each, for the last `tokens`
// of `positions`.
double bench_attention(const CpuKernels& set, ThreadPool& pool, double peak, uint32_t bits,
                       uint32_t positions, uint32_t tokens) {
  // Fewer heads where their caches would not fit.
  const uint32_t kKvHeads = positions > 65536 ? 2 : 8;
  constexpr uint32_t kGroup = 4;
  constexpr uint32_t kDim = 128;
  CpuKvCache cache(1, kKvHeads, kDim, {bits, {}});
  if (!cache.reserve(positions).ok()) return 0;
  std::mt19937 random(positions);
  std::vector<int16_t> vector(kDim);
  for (uint32_t p = 0; p < positions; ++p) {
    for (int16_t& v : vector) {
      v = static_cast<int16_t>(static_cast<int32_t>(random() % 60001U) - 30000);
    }
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      cache.store_key(0, head, p, vector.data(), -15);
      cache.store_value(0, head, p, vector.data(), -15);
    }
  }
  const std::vector<int16_t> queries(size_t{tokens} * kKvHeads * kGroup * kDim, 2000);
  const std::vector<int32_t> exponents(size_t{tokens} * kKvHeads * kGroup, -14);
  std::vector<float> out(queries.size());
  std::vector<AttentionScratch> scratch(kKvHeads);
  const uint32_t at_once = std::min(tokens, 4U);
  const double time = seconds([&] {
    pool.split(kKvHeads, 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t head = begin; head < end; ++head) {
        for (uint32_t t = 0; t < tokens; t += at_once) {
          const size_t slot = size_t{t} * kKvHeads * kGroup + head * kGroup;
          AttentionTask task;
          task.queries = queries.data() + slot * kDim;
          task.exponents = exponents.data() + slot;
          task.query_stride = size_t{kKvHeads} * kGroup * kDim;
          task.exponent_stride = size_t{kKvHeads} * kGroup;
          task.out_stride = task.query_stride;
          task.tokens = std::min(at_once, tokens - t);
          task.heads = kGroup;
          task.position = positions - tokens + t;
          task.constant = 100.0F;
          if (!set.attention(cache.view(0, static_cast<uint32_t>(head)), task, nullptr,
                             scratch[head], out.data() + slot * kDim)) {
            std::abort();
          }
        }
      }
    });
  });
  const double pairs = static_cast<double>(positions) * tokens * kKvHeads * kGroup;
  if (peak == 0) return time / kKvHeads;
  // Every token reads the cache at least once for all of a kv head's queries; every query
  // multiplies with keys and values.
  const double speed = static_cast<double>(cache.bytes()) / time;
  const double products = pairs * 2 * kDim / time;
  std::printf(
      "  %2u bits %6u positions %3u tokens  %9.1f us  %5.2f ns a query and position  %5.1f GB/s "
      "(%3.0f %% of reading)  %5.1f GMAC/s (%2.0f %% of 118 a core)\n",
      bits, positions, tokens, time * 1e6, time * 1e9 / pairs, speed * 1e-9, speed / peak * 100,
      products * 1e-9, products / (118e9 * pool.threads()) * 100);
  return time / kKvHeads;
}

}  // namespace

namespace {

void print_context(const CpuKernels& set, ThreadPool& pool) {
  std::printf("{\"context\": [");
  for (const uint32_t bits : {16U, 8U}) {
    std::printf("%s{\"name\": \"%u bits\", \"points\": [", bits == 16 ? "" : ", ", bits);
    for (uint32_t positions = 512; positions <= 262144; positions *= 2) {
      const double time = bench_attention(set, pool, 0, bits, positions, 1);
      std::printf("%s[%u, %.2f]", positions == 512 ? "" : ", ", positions, time * 8e6);
    }
    std::printf("]}");
  }
  std::printf("]}\n");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view isa = argc > 1 ? argv[1] : "avx512";
  const auto threads = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 2);
  const std::string_view part = argc > 3 ? argv[3] : "";
  const Result<const CpuKernels*> found = find_kernels(isa);
  if (!found) {
    std::fprintf(stderr, "%s\n", found.error().message.c_str());
    return 1;
  }
  const CpuKernels* set = *found;
  if (part == "context") {
    ThreadPool context_pool(threads);
    print_context(*set, context_pool);
    return 0;
  }
  AlignedArray<uint8_t> memory(size_t{1} << 28);
  std::memset(memory.data(), 1, memory.size());
  double peak = 0;
  for (uint32_t n = 1; n <= threads; ++n) {
    ThreadPool pool(n);
    peak = bandwidth(pool, memory);
    std::printf("reading memory, %u threads: %.1f GB/s\n", n, peak * 1e-9);
  }
  memory = AlignedArray<uint8_t>();
  ThreadPool pool(threads);
  for (const WeightFormat format : {WeightFormat::k8, WeightFormat::k4, WeightFormat::k6}) {
    if (!part.empty() && part != (name_of(format))) continue;
    bench_matmul(*set, pool, peak, format, 3072, 1024);
    bench_matmul(*set, pool, peak, format, 4096, 14336);
  }
  if (part.empty() || part == "attention") {
    std::printf("attention\n");
    for (const uint32_t bits : {16U, 8U}) {
      for (const uint32_t positions : {512U, 4096U, 32768U, 262144U}) {
        for (const uint32_t tokens : {1U, 16U}) {
          bench_attention(*set, pool, peak, bits, positions, tokens);
        }
      }
    }
  }
  return 0;
}
