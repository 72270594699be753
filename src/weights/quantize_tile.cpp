#include "weights/quantize_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "arithmetic/dot.h"
#include "arithmetic/draw.h"
#include "arithmetic/format.h"
#include "kernels/kernels.h"
#include "weights/quantize.h"

namespace tandem::weights {
namespace {

using kernels::kTileRows;
using kernels::WeightFormat;

struct Tile {
  std::vector<uint8_t> bytes;
  std::vector<float> row_scales = std::vector<float>(kTileRows);
};

Tile quantized(TileQuantizer run, const TileShape& shape, TileScratch& scratch) {
  Tile tile;
  tile.bytes.assign(kernels::PackedMatrix::tile_bytes(shape.format, shape.columns), 0xa5);
  if (!run(shape, scratch, tile.bytes.data(), tile.row_scales.data())) tile.bytes.clear();
  return tile;
}

// Grids that are used and others that are not.
void set_grids(const TileShape& shape, TileScratch& scratch) {
  const uint32_t groups = (shape.columns + arithmetic::kGroup - 1) / arithmetic::kGroup;
  for (uint32_t g = 0; g < groups; ++g) {
    for (uint32_t r = 0; r < kTileRows; ++r) {
      float* fit = scratch.fits.data() + size_t{g} * 2 * kTileRows + r;
      const bool exists = r < shape.rows;
      fit[0] = exists ? static_cast<float>(g + r) * 0x1p-6F : 0.0F;
      fit[kTileRows] = exists ? static_cast<float>(g * r) * 0x1p-5F - 0x1p-6F : 0.0F;
    }
  }
}

// A ragged tile of weights like those of a trained matrix, with a group of zeros and an outlier.
bool same_as_reference(TileQuantizer run) {
  for (const WeightFormat format : {WeightFormat::k8, WeightFormat::k4, WeightFormat::k6}) {
    const TileShape shape{format, 172, 13};
    TileScratch scratch(format, shape.columns);
    if (!scratch.ok()) return true;
    for (uint32_t k = 0; k < shape.columns; ++k) {
      for (uint32_t r = 0; r < shape.rows; ++r) {
        const auto bits = static_cast<int32_t>(arithmetic::random_at(k, r) >> 40) - (1 << 23);
        const float x = static_cast<float>(bits) * 0x1p-23F;
        scratch.weights[size_t{k} * kTileRows + r] = k / 32 == r ? 0.0F : x * x * x;
      }
    }
    scratch.weights[5] = -3.0F;
    for (const bool grids : {false, true}) {
      TileShape own = shape;
      own.grids = grids;
      if (grids && format != WeightFormat::k4) break;
      if (grids) set_grids(shape, scratch);
      const Tile expected = quantized(quantize_tile_reference, own, scratch);
      if (grids) set_grids(shape, scratch);  // which fits may have replaced
      const Tile found = quantized(run, own, scratch);
      if (expected.bytes != found.bytes || expected.row_scales != found.row_scales) return false;
    }
  }
  return true;
}

}  // namespace

TileScratch::TileScratch(WeightFormat format, uint32_t columns)
    : weights(size_t{kernels::padded_columns(columns)} * kTileRows),
      wants_fits(format == WeightFormat::k4) {
  if (wants_fits) {
    fits = AlignedArray<float>((columns + arithmetic::kGroup - 1) / arithmetic::kGroup * size_t{2} *
                               kTileRows);
  }
}

std::vector<NamedTileQuantizer> tile_quantizers() {
  const kernels::CpuFeatures features = kernels::cpu_features();
  std::vector<NamedTileQuantizer> all;
  if (features.avx512) all.push_back({"avx512", avx512_tile_quantizer()});
  if (features.avx2) all.push_back({"avx2", avx2_tile_quantizer()});
  all.push_back({"baseline", baseline_tile_quantizer()});
  std::erase_if(all, [](const NamedTileQuantizer& one) { return one.run == nullptr; });
  return all;
}

bool quantize_tile_reference(const TileShape& shape, TileScratch& scratch, uint8_t* tile,
                             float* row_scales) {
  const uint32_t columns = shape.columns;
  kernels::PackedMatrix matrix = kernels::make_packed(shape.format, shape.rows, columns);
  std::vector<float> row(columns);
  std::vector<int8_t> quants8(columns);
  std::vector<uint8_t> quants(columns);
  std::vector<uint8_t> scales((columns + arithmetic::kGroup - 1) / arithmetic::kGroup);
  std::vector<uint8_t> minimums(scales.size());
  std::vector<GroupGrid> grids(shape.grids ? scales.size() : 0);
  for (uint32_t r = 0; r < shape.rows; ++r) {
    for (uint32_t k = 0; k < columns; ++k) row[k] = scratch.weights[size_t{k} * kTileRows + r];
    for (size_t g = 0; g < grids.size(); ++g) {
      const float* fit = scratch.fits.data() + g * 2 * kTileRows + r;
      grids[g] = {fit[0], fit[kTileRows]};
    }
    // Written so that NaN counts as too large.
    const bool usable = std::all_of(row.begin(), row.end(), [](float w) {
      return std::fabs(w) <= arithmetic::kMaxRowScale * 127.0F;
    });
    if (!usable) return false;
    switch (shape.format) {
      case WeightFormat::k8:
        kernels::store_row8(matrix, r, quants8, quantize_row8(row, quants8));
        break;
      case WeightFormat::k4:
        kernels::store_row4(matrix, r, quants, scales, minimums,
                            quantize_row4(row, quants, scales, minimums, grids));
        break;
      case WeightFormat::k6:
        kernels::store_row6(matrix, r, quants, scales, quantize_row6(row, quants, scales));
        break;
    }
  }
  std::memcpy(tile, matrix.data.data(), matrix.data.size());
  std::copy_n(&matrix.row_scales[0], kTileRows, row_scales);
  return true;
}

TileQuantizer best_tile_quantizer() {
  static const TileQuantizer best = [] {
    for (const NamedTileQuantizer& one : tile_quantizers()) {
      if (same_as_reference(one.run)) return one.run;
    }
    return &quantize_tile_reference;
  }();
  return best;
}

}  // namespace tandem::weights
