// Quantizing: weights a second and core, per format and instruction set, from a BF16 tensor in
// memory. quantize_bench [ROWS COLUMNS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "weights/dtype.h"
#include "weights/quantize.h"
#include "weights/quantize_tile.h"

using namespace tandem;
using namespace tandem::weights;

namespace {

// The best of a few runs, in seconds.
template <typename Body>
double seconds(Body&& body) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (time.count() < best) best = time.count();
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const auto rows = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[1]) : 3072);
  const auto columns = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 2560);
  std::vector<uint16_t> bits(size_t{rows} * columns);
  uint64_t state = 1;
  for (uint16_t& value : bits) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      sum += static_cast<float>(state >> 40) * 0x1p-24F - 0.5F;
    }
    value = f32_to_bf16(0.04F * sum);
  }
  TensorData tensor;
  tensor.info = {"w", DType::kBF16, {rows, columns}};
  tensor.bytes = std::as_bytes(std::span(bits));
  const auto million = static_cast<double>(bits.size()) * 1e-6;
  ThreadPool one(1);
  for (const auto& [format, name] : {std::pair{kernels::WeightFormat::k8, "8 bits"},
                                     std::pair{kernels::WeightFormat::k6, "6 bits"},
                                     std::pair{kernels::WeightFormat::k4, "4 bits"}}) {
    const double whole = seconds([&, format = format] {
      const auto matrix = quantize_matrix(tensor, {false, 0, rows, columns}, format, one);
      if (!matrix.ok()) std::abort();
    });
    std::printf("%s  reading and quantizing %7.1f M weights/s = %.2f GB/s of BF16\n", name,
                million / whole, million / whole * 2e-3);
    auto sets = tile_quantizers();
    sets.push_back({"rows", quantize_tile_reference});
    for (const NamedTileQuantizer& set : sets) {
      const TileShape shape{format, columns, kernels::kTileRows};
      TileScratch scratch(format, columns);
      for (size_t i = 0; i < size_t{columns} * kernels::kTileRows; ++i) {
        scratch.weights[i] = bf16_to_f32(bits[i]);
      }
      std::vector<uint8_t> tile(kernels::PackedMatrix::tile_bytes(format, columns));
      float row_scales[kernels::kTileRows];
      const double time = seconds([&] { (void)set.run(shape, scratch, tile.data(), row_scales); });
      std::printf("    %-9s %8.1f M weights/s\n", set.isa.c_str(),
                  1e-6 * columns * kernels::kTileRows / time);
    }
  }
  return 0;
}
