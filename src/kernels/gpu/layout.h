// Weights and activations as GPU kernels read them. Both GPU backends share these layouts: rows one
// after the other, so that neighbouring lanes read neighbouring 16-byte words.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/packed.h"

namespace tandem::kernels::gpu {

/// Integer weights [rows, columns], converted from the CPU's tiles when they are uploaded. Columns
/// are padded with zeros to `padded`, a multiple of 64; groups are of arithmetic::kGroup columns.
struct Weights {
  WeightFormat format = WeightFormat::k8;
  uint32_t rows = 0;
  uint32_t columns = 0;
  uint32_t padded = 0;
  /// k8: [row][column] signed bytes.
  /// k4, k6: [row][group][16]: byte i = low four bits of quant i | of quant 16 + i << 4.
  std::vector<uint8_t> quants;
  /// k6: [row][group][2][4]: byte i of word w = high two bits of quant 16 w + i | of 16 w + 4 + i
  /// << 2 | of 16 w + 8 + i << 4 | of 16 w + 12 + i << 6.
  std::vector<uint8_t> high;
  /// k4: [row][group] two bytes, scale and minimum. k6: [row][group] one byte, the scale.
  std::vector<uint8_t> multipliers;
  std::vector<float> row_scales;  ///< [row]

  /// Bytes that a product with one token reads.
  [[nodiscard]] uint64_t bytes() const {
    return quants.size() + high.size() + multipliers.size() + row_scales.size() * sizeof(float);
  }
};

Weights to_gpu(const PackedMatrix& matrix);

/// Activations of some tokens: x = 256 * high + low, both signed bytes.
struct Activations {
  uint32_t tokens = 0;
  uint32_t padded = 0;
  std::vector<uint8_t> planes;       ///< [token][high, low][padded]
  std::vector<int32_t> exponents;    ///< [token]
  std::vector<uint32_t> group_sums;  ///< [token][group] sums of the high | of the low plane << 16
};

/// `values` is [tokens][columns]; `padded` as that of the weights that they will meet, or any
/// multiple of 4 that holds the columns (heads).
Activations to_gpu(std::span<const int16_t> values, std::span<const int32_t> exponents,
                   uint32_t padded);

}  // namespace tandem::kernels::gpu
