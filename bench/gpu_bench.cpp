// Measures products with integer weights on this machine's GPU, through CUDA and through WebGPU,
// beside the bandwidth of copying memory on the device in the same run: what share of it
// one-token products reach. Every product that is timed is also compared with the reference.
// Usage: gpu_bench [cuda | webgpu] [--tune]
//   --tune  after the chosen way to cut a product among threads, all others
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "arithmetic/dot.h"
#include "kernels/cuda/dots.h"
#include "kernels/gpu/layout.h"
#include "kernels/webgpu/device.h"
#include "kernels/webgpu/kernels.h"

namespace {

using namespace tandem;
using namespace tandem::kernels;

constexpr int kBatches = 7;
constexpr double kBatchSeconds = 0.02;            // timestamps of WebGPU come in steps of 0.1 ms
constexpr uint64_t kRotated = uint64_t{1} << 30;  // bytes of weights in all: past every cache
constexpr uint64_t kCopied = uint64_t{2} << 30;

struct Shape {
  WeightFormat format;
  uint32_t rows;
  uint32_t columns;
  uint32_t tokens;
};

constexpr Shape kShapes[] = {
    {WeightFormat::k8, 4096, 4096, 1},
    {WeightFormat::k8, 14336, 4096, 1},
    {WeightFormat::k8, 4096, 14336, 1},
    {WeightFormat::k8, 57344, 4096, 1},
    {WeightFormat::k8, 14336, 4096, 2},
    {WeightFormat::k8, 14336, 4096, 4},
    {WeightFormat::k8, 14336, 4096, 8},
    {WeightFormat::k4, 4096, 4096, 1},
    {WeightFormat::k4, 14336, 4096, 1},
    {WeightFormat::k4, 4096, 14336, 1},
    {WeightFormat::k4, 57344, 4096, 1},
    {WeightFormat::k4, 14336, 4096, 4},
    {WeightFormat::k4, 14336, 4096, 8},
    {WeightFormat::k6, 57344, 4096, 1},
    // A vocabulary's: what a product costs beside its bytes hardly counts here.
    {WeightFormat::k8, 151936, 4096, 1},
    {WeightFormat::k4, 151936, 4096, 1},
};

class Random {
 public:
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15U;
};

void fill(std::vector<uint8_t>& bytes, uint64_t mask, Random& random) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t value = random.next() & mask;
    std::memcpy(&bytes[i], &value, 8);
  }
}

gpu::Weights random_weights(const Shape& shape, Random& random) {
  gpu::Weights w;
  w.format = shape.format;
  w.rows = shape.rows;
  w.columns = shape.columns;
  w.padded = padded_columns(shape.columns);
  const uint64_t values = uint64_t{w.rows} * w.padded;
  const bool eight = shape.format == WeightFormat::k8;
  const bool six = shape.format == WeightFormat::k6;
  w.quants.resize(eight ? values : values / 2);
  w.high.resize(six ? values / 4 : 0);
  w.multipliers.resize(eight ? 0 : values / 32 * (six ? 1 : 2));
  fill(w.quants, ~uint64_t{0}, random);
  fill(w.high, ~uint64_t{0}, random);
  fill(w.multipliers, 0x3f3f3f3f3f3f3f3fU, random);
  for (uint32_t r = 0; r < w.rows; ++r) {
    w.row_scales.push_back(0.001F + static_cast<float>(random.next() % 4096) * 0x1p-20F);
  }
  return w;
}

int32_t weight(const gpu::Weights& w, size_t row, size_t k) {
  if (w.format == WeightFormat::k8) {
    return static_cast<int8_t>(w.quants[row * w.padded + k]);
  }
  const size_t index = row * (w.padded / 32) + k / 32;
  const uint8_t byte = w.quants[index * 16 + k % 16];
  const int32_t low = k % 32 >= 16 ? byte >> 4 : byte & 15;
  if (w.format == WeightFormat::k4) {
    return w.multipliers[index * 2] * low - 8 * w.multipliers[index * 2 + 1];
  }
  const int32_t high = w.high[index * 8 + k % 32 / 16 * 4 + k % 4] >> (k % 16 / 4 * 2) & 3;
  return w.multipliers[index] * ((low | high << 4) - 32);
}

struct Input {
  std::vector<int16_t> values;
  std::vector<int32_t> exponents;
};

Input random_input(const Shape& shape, Random& random) {
  Input in;
  for (size_t i = 0; i < size_t{shape.tokens} * shape.columns; ++i) {
    in.values.push_back(static_cast<int16_t>(static_cast<int64_t>(random.next() % 65279) - 32639));
  }
  for (uint32_t t = 0; t < shape.tokens; ++t) in.exponents.push_back(-14 - static_cast<int>(t));
  return in;
}

// Rows of all parts of the matrix, for every token.
bool matches(const Shape& shape, const gpu::Weights& w, const Input& in,
             const std::vector<float>& out) {
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t row = i < 16   ? i
                         : i < 32 ? shape.rows - 1 - (i - 16)
                                  : i * 2654435761U % shape.rows;
    for (uint32_t t = 0; t < shape.tokens; ++t) {
      int64_t sum = 0;
      for (uint32_t k = 0; k < shape.columns; ++k) {
        sum += int64_t{weight(w, row, k)} * in.values[size_t{t} * shape.columns + k];
      }
      const float expected = arithmetic::scaled(sum, w.row_scales[row], in.exponents[t]);
      const float got = out[size_t{t} * shape.rows + row];
      if (std::bit_cast<uint32_t>(expected) != std::bit_cast<uint32_t>(got)) return false;
    }
  }
  return true;
}

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

// Seconds a turn: medians of batches that are long enough for the device's clock.
Result<Spread> measure(const std::function<Result<double>(uint32_t turns)>& batch) {
  TANDEM_TRY(batch(4));
  TANDEM_ASSIGN(const double first, batch(16));
  const auto turns = static_cast<uint32_t>(std::clamp(16 * kBatchSeconds / first, 4.0, 3000.0));
  std::vector<double> seconds;
  for (int i = 0; i < kBatches; ++i) {
    TANDEM_ASSIGN(const double time, batch(turns));
    seconds.push_back(time / turns);
  }
  std::sort(seconds.begin(), seconds.end());
  return Spread{seconds[kBatches / 2], seconds.front(), seconds.back()};
}

void print_head(const char* backend, const std::string& device, double copy) {
  std::printf("\n%s on %s: copying on the device %.0f GB/s, bytes read + written\n", backend,
              device.c_str(), copy * 1e-9);
  std::printf(
      "  weights          shape tokens  cut              us (least - most)      GB/s  of "
      "copying\n");
}

bool print_row(const Shape& shape, const std::string& cut, uint64_t bytes, const Spread& time,
               double copy, bool equal) {
  const double speed = static_cast<double>(bytes) / time.median;
  std::printf("  %d bits  %7u x %-6u %5u  %-14s %8.2f (%.2f - %.2f)  %7.0f  %5.1f %%  %s\n",
              shape.format == WeightFormat::k8   ? 8
              : shape.format == WeightFormat::k4 ? 4
                                                 : 6,
              shape.rows, shape.columns, shape.tokens, cut.c_str(), time.median * 1e6,
              time.least * 1e6, time.most * 1e6, speed * 1e-9, speed / copy * 100,
              equal ? "bits equal" : "BITS DIFFER");
  std::fflush(stdout);
  return equal;
}

uint32_t copies_of(uint64_t bytes) {
  return static_cast<uint32_t>(std::max<uint64_t>(2, (kRotated + bytes - 1) / bytes));
}

Result<bool> bench_cuda(bool tune, double& copy) {
  TANDEM_ASSIGN(const auto device, cuda::Device::open());
  {
    TANDEM_ASSIGN(const cuda::Memory from, device->allocate(kCopied));
    TANDEM_ASSIGN(const cuda::Memory to, device->allocate(kCopied));
    TANDEM_ASSIGN(const Spread time, measure([&](uint32_t turns) {
                    return device->seconds([&]() -> Status {
                      for (uint32_t i = 0; i < turns; ++i) {
                        TANDEM_TRY(device->copy(from, to, kCopied));
                      }
                      return {};
                    });
                  }));
    copy = 2.0 * static_cast<double>(kCopied) / time.median;
  }
  print_head("CUDA", device->info().name, copy);
  bool all_equal = true;
  Random random;
  for (const Shape& shape : kShapes) {
    cuda::Dots dots(*device);
    const gpu::Weights weights = random_weights(shape, random);
    const Input in = random_input(shape, random);
    TANDEM_ASSIGN(const cuda::Activations x,
                  dots.upload(gpu::to_gpu(in.values, in.exponents, weights.padded)));
    std::vector<cuda::Matrix> matrices;
    for (uint32_t i = 0; i < copies_of(weights.bytes()); ++i) {
      TANDEM_ASSIGN(cuda::Matrix matrix, dots.upload(weights));
      matrices.push_back(std::move(matrix));
    }
    std::vector<float> out(size_t{shape.tokens} * shape.rows);
    std::vector<cuda::DotShape> cuts = {
        cuda::best_shape(shape.format, shape.rows, shape.columns, shape.tokens)};
    if (tune) {
      for (const uint32_t rows : shape.tokens == 1 ? std::vector{2U, 4U} : std::vector{2U}) {
        for (const uint32_t lanes : {32U, 64U, 128U}) {
          for (const bool early : {false, true}) {
            cuts.push_back({rows, 2 * rows, lanes, 128, early});
          }
        }
      }
    }
    for (const cuda::DotShape& cut : cuts) {
      dots.set_shape(cut);
      std::fill(out.begin(), out.end(), -1.0F);
      TANDEM_ASSIGN(const cuda::Memory result, device->upload(out));
      size_t turn = 0;
      TANDEM_ASSIGN(
          const Spread time, measure([&](uint32_t turns) {
            return device->seconds([&]() -> Status {
              for (uint32_t i = 0; i < turns; ++i) {
                TANDEM_TRY(dots.matmul(matrices[turn++ % matrices.size()], x, nullptr, result));
              }
              return {};
            });
          }));
      TANDEM_TRY(device->read(result, out));
      all_equal &= print_row(shape,
                             std::to_string(cut.rows) + "r " + std::to_string(cut.loads) + "l " +
                                 std::to_string(cut.lanes) + "/" + std::to_string(cut.threads) +
                                 (cut.early ? "" : " w"),
                             weights.bytes(), time, copy, matches(shape, weights, in, out));
    }
  }
  return all_equal;
}

// `reference` is the bandwidth of copying that CUDA measured, or 0: WebGPU's copies reach a
// fraction of it on some drivers, and shares of a fraction would flatter.
Result<bool> bench_webgpu(bool tune, double reference) {
  TANDEM_ASSIGN(const auto device, webgpu::Device::open());
  const bool slow = device->info().software;
  double copy = 0;
  {
    const uint64_t bytes = slow ? uint64_t{64} << 20 : std::min(kCopied, device->info().max_buffer);
    TANDEM_ASSIGN(const webgpu::Buffer from, device->make_buffer(bytes));
    TANDEM_ASSIGN(const webgpu::Buffer to, device->make_buffer(bytes));
    TANDEM_ASSIGN(const Spread time, measure([&](uint32_t turns) {
                    return device->seconds_to_copy(from, to, bytes, turns);
                  }));
    copy = 2.0 * static_cast<double>(bytes) / time.median;
  }
  print_head("WebGPU", device->info().name, copy);
  if (reference > copy) {
    copy = reference;
    std::printf("  shares are of what CUDA copies: %.0f GB/s\n", copy * 1e-9);
  }
  bool all_equal = true;
  Random random;
  for (Shape shape : kShapes) {
    if (slow) shape.rows = std::min(shape.rows, 512U);
    webgpu::Kernels kernels(*device);
    const gpu::Weights weights = random_weights(shape, random);
    const Input in = random_input(shape, random);
    TANDEM_ASSIGN(const webgpu::ActivationBuffers x,
                  kernels.upload(gpu::to_gpu(in.values, in.exponents, weights.padded)));
    std::vector<webgpu::Matrix> matrices;
    for (uint32_t i = 0; i < (slow ? 2 : copies_of(weights.bytes())); ++i) {
      TANDEM_ASSIGN(webgpu::Matrix matrix, kernels.upload(weights));
      matrices.push_back(std::move(matrix));
    }
    std::vector<float> out(size_t{shape.tokens} * shape.rows);
    std::vector<webgpu::MatmulShape> cuts = {
        webgpu::best_shape(shape.format, shape.rows, shape.columns)};
    if (tune && shape.tokens == 1) {
      for (const uint32_t rows : {1U, 2U, 4U}) {
        for (const uint32_t batch : {1U, 2U, 4U}) {
          if (rows * batch > 8) continue;
          for (const uint32_t lanes : {8U, 16U, 32U, 64U}) {
            cuts.push_back({lanes, rows, lanes == 64 ? 128U : 64U, batch});
          }
        }
      }
    }
    for (const webgpu::MatmulShape& cut : cuts) {
      kernels.set_matmul_shape(cut);
      std::fill(out.begin(), out.end(), -1.0F);
      TANDEM_ASSIGN(const webgpu::Buffer result, device->make_buffer(out));
      size_t turn = 0;
      TANDEM_ASSIGN(const Spread time, measure([&](uint32_t turns) -> Result<double> {
                      webgpu::Commands commands;
                      for (uint32_t i = 0; i < turns; ++i) {
                        TANDEM_TRY(kernels.matmul(matrices[turn++ % matrices.size()], x, nullptr,
                                                  result, commands));
                      }
                      return device->seconds(commands);
                    }));
      TANDEM_TRY(device->read(result, out));
      all_equal &= print_row(shape,
                             std::to_string(cut.rows) + "r " + std::to_string(cut.batch) + "b " +
                                 std::to_string(cut.lanes) + "/" + std::to_string(cut.threads),
                             weights.bytes(), time, copy, matches(shape, weights, in, out));
    }
  }
  return all_equal;
}

// 0: measured, or nothing to measure; 1: wrong bits or a failure.
int report(const char* backend, const Result<bool>& result) {
  if (result.ok()) return *result ? 0 : 1;
  std::printf("%s: %s\n", backend, result.error().message.c_str());
  const ErrorKind kind = result.error().kind;
  return kind == ErrorKind::kNotFound || kind == ErrorKind::kUnsupported ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  bool tune = false;
  std::string_view only;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--tune") {
      tune = true;
    } else if (argument == "cuda" || argument == "webgpu") {
      only = argument;
    } else {
      std::fprintf(stderr, "usage: gpu_bench [cuda | webgpu] [--tune]\n");
      return 2;
    }
  }
  int failed = 0;
  double copy = 0;
  if (only != "webgpu") failed |= report("CUDA", bench_cuda(tune, copy));
  if (only != "cuda") failed |= report("WebGPU", bench_webgpu(tune, copy));
  return failed;
}
