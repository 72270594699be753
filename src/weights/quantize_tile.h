// Sixteen rows at a time, a row in each lane of a vector: how a matrix is quantized. The integers
// are those of quantize_row8(), quantize_row4() and quantize_row6(), operation by operation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "kernels/packed.h"

namespace tandem::weights {

/// What a tile holds.
struct TileShape {
  kernels::WeightFormat format = kernels::WeightFormat::k8;
  uint32_t columns = 0;
  uint32_t rows = 0;  ///< 1 to 16; lanes past them hold weights of zero
  /// 4 bits only: scratch.fits holds the groups' grids (GroupGrid), of lanes past `rows` zeros.
  bool grids = false;
};

/// One thread's memory.
struct TileScratch {
  AlignedArray<float> weights;  ///< [padded_columns][16], zero where there is no weight
  AlignedArray<float> fits;     ///< [group][scale, minimum][16]; 4 bits only

  TileScratch(kernels::WeightFormat format, uint32_t columns);
  /// False if there was no memory.
  [[nodiscard]] bool ok() const { return weights.size() != 0 && (!wants_fits || fits.size() != 0); }
  bool wants_fits = false;
};

/// Quantizes scratch.weights, writes every byte of the tile, and its sixteen row scales: 0 for
/// rows that do not exist. False if a weight is not finite or beyond kMaxRowScale * 127; the tile
/// is then undefined.
using TileQuantizer = bool (*)(const TileShape& shape, TileScratch& scratch, uint8_t* tile,
                               float* row_scales);

/// The quantizer of one instruction set.
struct NamedTileQuantizer {
  std::string isa;
  TileQuantizer run = nullptr;
};
/// Those that this machine can run, the fastest first; "baseline", which every machine has, last.
std::vector<NamedTileQuantizer> tile_quantizers();

/// Row by row through quantize_row8() and its siblings: what the others are compared with.
bool quantize_tile_reference(const TileShape& shape, TileScratch& scratch, uint8_t* tile,
                             float* row_scales);

/// The fastest that gives the reference's bits on known cases, tried once a process. Thread-safe.
TileQuantizer best_tile_quantizer();

/// For weights that were DType::kMxfp4 and become 6 bits: nothing is lost unless blocks of a row
/// are more than seven powers of two apart.
TileQuantizer mxfp4_tile_quantizer();

// One a source file; null where the build has no such instructions.
TileQuantizer avx512_tile_quantizer();
TileQuantizer avx2_tile_quantizer();
TileQuantizer baseline_tile_quantizer();

}  // namespace tandem::weights
