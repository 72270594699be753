// What the tests of both GPU backends share: matrices at the edges of their formats, and products
// by the definitions of src/arithmetic.
#pragma once

#include "arithmetic/dot.h"
#include "kernels/gpu/layout.h"
#include "kernels/support.h"

namespace tandem::kernels::gpu {

using cpu::Fill;
using cpu::Random;

/// How weights are filled.
enum class Extreme { kRandom, kHighest, kLowest };

inline PackedMatrix make_matrix(WeightFormat format, uint32_t rows, uint32_t columns, Extreme kind,
                                Random& random) {
  PackedMatrix matrix = make_packed(format, rows, columns);
  const auto draw = [&](int lowest, int highest) {
    return kind == Extreme::kRandom    ? static_cast<int>(random.integer(lowest, highest))
           : kind == Extreme::kHighest ? highest
                                       : lowest;
  };
  for (uint32_t r = 0; r < rows; ++r) {
    // Row scales over their whole range, with mantissas of every length.
    const auto scale = static_cast<float>(
        std::ldexp(1.0 + std::ldexp(static_cast<double>(random.integer(0, 8388607)), -23),
                   static_cast<int>(random.integer(-30, 9))));
    if (format == WeightFormat::k8) {
      std::vector<int8_t> weights(columns);
      for (int8_t& w : weights) w = static_cast<int8_t>(draw(-127, 127));
      store_row8(matrix, r, weights, scale);
      continue;
    }
    const bool four = format == WeightFormat::k4;
    const uint32_t groups = (columns + arithmetic::kGroup - 1) / arithmetic::kGroup;
    std::vector<uint8_t> quants(columns);
    std::vector<uint8_t> scales(groups);
    std::vector<uint8_t> minimums(groups);
    const int largest = four ? 63 : 127;
    for (uint8_t& q : quants) q = static_cast<uint8_t>(draw(0, four ? 15 : 63));
    for (uint32_t g = 0; g < groups; ++g) {
      const bool random_group = kind == Extreme::kRandom;
      scales[g] = static_cast<uint8_t>(random_group ? random.integer(0, largest) : largest);
      minimums[g] = static_cast<uint8_t>(random_group                ? random.integer(0, 63)
                                         : kind == Extreme::kHighest ? 0
                                                                     : 63);
    }
    if (four) {
      store_row4(matrix, r, quants, scales, minimums, scale);
    } else {
      store_row6(matrix, r, quants, scales, scale);
    }
  }
  return matrix;
}

/// One case of a product: activations of some tokens, perhaps a bias.
struct Product {
  std::vector<int16_t> values;  ///< [tokens][columns]
  std::vector<int32_t> exponents;
  std::vector<float> bias;  ///< [rows] or empty
};

inline Product make_product(const PackedMatrix& matrix, uint32_t tokens, Fill fill, bool has_bias,
                            Random& random) {
  Product product;
  product.values.resize(size_t{tokens} * matrix.columns);
  for (size_t i = 0; i < product.values.size(); ++i) {
    product.values[i] = random.activation(fill, i);
  }
  for (uint32_t t = 0; t < tokens; ++t) {
    product.exponents.push_back(static_cast<int32_t>(random.integer(-94, 114)));
  }
  if (has_bias) {
    product.bias.resize(matrix.rows);
    for (float& b : product.bias) b = random.any_bits();
  }
  return product;
}

/// [token][row] by the contract's definitions.
inline std::vector<float> reference(const PackedMatrix& matrix, const Product& product) {
  const size_t tokens = product.exponents.size();
  std::vector<float> out(tokens * matrix.rows);
  std::vector<int32_t> weights(matrix.columns);
  for (uint32_t row = 0; row < matrix.rows; ++row) {
    load_row(matrix, row, weights);
    for (size_t t = 0; t < tokens; ++t) {
      int64_t sum = 0;
      for (size_t k = 0; k < matrix.columns; ++k) {
        sum += int64_t{weights[k]} * product.values[t * matrix.columns + k];
      }
      const float y = arithmetic::scaled(sum, matrix.row_scales[row], product.exponents[t]);
      out[t * matrix.rows + row] = product.bias.empty() ? y : y + product.bias[row];
    }
  }
  return out;
}

inline const char* name_of(WeightFormat format) {
  return format == WeightFormat::k8   ? "Weights8"
         : format == WeightFormat::k4 ? "Weights4"
                                      : "Weights6";
}

}  // namespace tandem::kernels::gpu
