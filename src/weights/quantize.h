// Checkpoint tensors to integer weights in the kernels' layout. Part of the contract: the same
// tensor gives the same integers on every machine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/packed.h"
#include "weights/block.h"
#include "weights/source.h"

namespace tandem::weights {

/// 8 bits: scale = max|w| / 127 (at least arithmetic::kMinRowScale), q = round(w / scale), both one
/// binary32 operation. Returns the scale. `quants` holds as many values as `row`.
float quantize_row8(std::span<const float> row, std::span<int8_t> quants);

/// 4 bits: groups of 32, each q in [0, 15] with a 6-bit scale and a 6-bit minimum under one row
/// scale: w = row_scale * (scale * q - 8 * minimum), fitted for the least squared error a group.
/// `quants` holds as many values as `row`; `scales` and `minimums` one a group. `grids` is empty,
/// or holds what each group's weights are known to be multiples of: one that spans at least half of
/// its sixteen steps takes the place of a fit. Returns row_scale.
float quantize_row4(std::span<const float> row, std::span<uint8_t> quants,
                    std::span<uint8_t> scales, std::span<uint8_t> minimums,
                    std::span<const GroupGrid> grids = {});

/// 6 bits: groups of 32 with a 7-bit scale: w = row_scale * scale * (q - 32), q in [0, 63].
float quantize_row6(std::span<const float> row, std::span<uint8_t> quants,
                    std::span<uint8_t> scales);

/// Which part of a tensor is a matrix [rows, columns].
struct MatrixPart {
  bool transposed = false;  ///< stored [columns, all rows] (GPT-2) instead of [all rows, columns]
  uint32_t first_row = 0;
  uint32_t rows = 0;
  uint32_t columns = 0;
  /// Row r is the tensor's row first_row + r * row_step; at most kMostRowStep.
  uint32_t row_step = 1;
  /// The tensor has three dimensions: the part is of its `slab`-th matrix.
  bool stacked = false;
  uint32_t slab = 0;
  /// Instead of the part what quantize_row8() leaves of each of its rows: w - scale * q, two
  /// binary32 operations. 8 bits only.
  bool rest = false;
};
inline constexpr uint32_t kMostRowStep = 2;

/// Quantizes a part of a tensor, rows split over `pool`. The tensor's shape must be two-dimensional
/// (three-dimensional for a stacked part) and hold the part. Errors: kInvalid (shape; a weight that
/// is not finite or beyond 2^10 * 127), kMemory; each names the tensor.
Result<kernels::PackedMatrix> quantize_matrix(const TensorData& tensor, const MatrixPart& part,
                                              kernels::WeightFormat format, ThreadPool& pool);

/// A one-dimensional tensor, or elements [first, first + count) of it, as binary32.
Result<std::vector<float>> read_vector(const TensorData& tensor, uint64_t first, uint64_t count);

}  // namespace tandem::weights
