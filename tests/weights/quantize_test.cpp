// Quantizing gives one set of integers: every instruction set's tile against the scalar rows, and
// whole matrices against both.
#include "weights/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "arithmetic/dot.h"
#include "base/hash.h"
#include "weights/dtype.h"
#include "weights/quantize_tile.h"

namespace tandem::weights {
namespace {

using kernels::kTileRows;
using kernels::WeightFormat;

constexpr WeightFormat kFormats[] = {WeightFormat::k8, WeightFormat::k4, WeightFormat::k6};

/// Weights of several kinds, by group: smooth, heavy-tailed, all positive, all negative, equal,
/// zero, minus zero, tiny, on a grid (ties), huge.
float sample(std::mt19937& random, uint32_t kind) {
  std::normal_distribution<float> normal;
  const float x = normal(random);
  switch (kind % 11) {
    case 0:
      return 0.02F * x;
    case 1:
      return 0.02F * x * x * x;
    case 2:
      return 1.0F + 0.1F * std::fabs(x);
    case 3:
      return -0.5F * std::fabs(x);
    case 4:
      return 0.125F;
    case 5:
      return 0.0F;
    case 6:
      return -0.0F;
    case 7:
      return 1e-30F * x;
    case 8:
      return std::nearbyint(8.0F * x) / 64.0F;
    case 9:
      return 3e4F * std::tanh(x);
    default:
      return x > 1.5F ? x : 1e-3F * x;
  }
}

struct Tile {
  bool usable = false;
  std::vector<uint8_t> bytes;
  std::vector<float> row_scales = std::vector<float>(kTileRows, -1.0F);
};

Tile run(TileQuantizer quantizer, const TileShape& shape, TileScratch& scratch) {
  Tile tile;
  tile.bytes.assign(kernels::PackedMatrix::tile_bytes(shape.format, shape.columns), 0x5a);
  tile.usable = quantizer(shape, scratch, tile.bytes.data(), tile.row_scales.data());
  return tile;
}

class EachSet : public testing::TestWithParam<NamedTileQuantizer> {};

TEST_P(EachSet, GivesTheScalarIntegers) {
  std::mt19937 random(7);
  for (const WeightFormat format : kFormats) {
    for (const uint32_t columns : {1U, 31U, 32U, 33U, 64U, 96U, 100U, 384U, 1023U}) {
      for (const uint32_t rows : {16U, 1U, 5U}) {
        const TileShape shape{format, columns, rows};
        TileScratch scratch(format, columns);
        ASSERT_TRUE(scratch.ok());
        for (uint32_t round = 0; round < 4; ++round) {
          for (uint32_t k = 0; k < columns; ++k) {
            for (uint32_t r = 0; r < rows; ++r) {
              scratch.weights[size_t{k} * kTileRows + r] =
                  sample(random, round == 0 ? 0 : k / 32 * 3 + r + round);
            }
          }
          const Tile expected = run(quantize_tile_reference, shape, scratch);
          const Tile found = run(GetParam().run, shape, scratch);
          ASSERT_TRUE(expected.usable && found.usable);
          ASSERT_EQ(found.bytes, expected.bytes) << columns << " columns, " << rows << " rows";
          ASSERT_EQ(found.row_scales, expected.row_scales);
        }
      }
    }
  }
}

TEST_P(EachSet, RefusesWhatIsNotFiniteOrTooLarge) {
  constexpr float kMost = arithmetic::kMaxRowScale * 127.0F;
  const float bad[] = {INFINITY,
                       -INFINITY,
                       std::numeric_limits<float>::quiet_NaN(),
                       -std::numeric_limits<float>::quiet_NaN(),
                       std::nextafter(kMost, INFINITY),
                       -std::nextafter(kMost, INFINITY)};
  for (const WeightFormat format : kFormats) {
    const TileShape shape{format, 70, 7};
    TileScratch scratch(format, shape.columns);
    for (const uint32_t row : {0U, 6U}) {
      float& weight = scratch.weights[size_t{69} * kTileRows + row];
      for (const float value : bad) {
        weight = value;
        EXPECT_FALSE(run(GetParam().run, shape, scratch).usable) << value;
      }
      for (const float value : {kMost, -kMost}) {
        weight = value;
        EXPECT_TRUE(run(GetParam().run, shape, scratch).usable) << value;
      }
      weight = 0;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quantize, EachSet, testing::ValuesIn(tile_quantizers()),
                         [](const auto& set) { return set.param.isa; });

TEST(Quantize, TheBaselineIsAlwaysThere) {
  const auto all = tile_quantizers();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.back().isa, "baseline");
  EXPECT_EQ(best_tile_quantizer(), all.front().run) << "it differs from the reference";
}

/// A BF16 tensor [rows, columns].
struct Stored {
  TensorData data;
  std::vector<uint16_t> bits;
  Stored(uint64_t rows, uint64_t columns, uint32_t seed) : bits(rows * columns) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 0.02F);
    for (uint16_t& value : bits) value = f32_to_bf16(normal(random));
    data.info = {"w", DType::kBF16, {rows, columns}};
    data.bytes = std::as_bytes(std::span(bits));
  }
};

std::string hash_of(const kernels::PackedMatrix& matrix) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(matrix.data.data(), matrix.data.size())));
  hash.update(std::as_bytes(std::span(matrix.row_scales.data(), matrix.row_scales.size())));
  return hex(hash.digest());
}

TEST(Quantize, AMatrixIsItsRowsWhateverTheThreadsAndTheSlabs) {
  Stored tensor(1030, 1000, 3);  // rows of 2,000 bytes; the last tile has six rows
  std::vector<float> row(1000);
  for (const WeightFormat format : kFormats) {
    const MatrixPart part{false, 10, 1014, 1000};
    auto expected = kernels::make_packed(format, part.rows, part.columns);
    std::vector<int8_t> quants8(1000);
    std::vector<uint8_t> quants(1000);
    std::vector<uint8_t> scales(32);
    std::vector<uint8_t> minimums(32);
    for (uint32_t r = 0; r < part.rows; ++r) {
      ASSERT_TRUE(
          widen(DType::kBF16, tensor.data.bytes.subspan((10 + r) * 2000UL, 2000), row).ok());
      if (format == WeightFormat::k8) {
        const float scale = quantize_row8(row, quants8);
        kernels::store_row8(expected, r, quants8, scale);
      } else if (format == WeightFormat::k4) {
        const float scale = quantize_row4(row, quants, scales, minimums);
        kernels::store_row4(expected, r, quants, scales, minimums, scale);
      } else {
        const float scale = quantize_row6(row, quants, scales);
        kernels::store_row6(expected, r, quants, scales, scale);
      }
    }
    for (const uint32_t threads : {1U, 3U}) {
      ThreadPool pool(threads);
      const auto found = quantize_matrix(tensor.data, part, format, pool);
      ASSERT_TRUE(found.ok()) << found.error().message;
      EXPECT_EQ(hash_of(*found), hash_of(expected)) << static_cast<int>(format);
    }
  }
}

TEST(Quantize, ATransposedTensorGivesTheSameMatrix) {
  Stored tensor(200, 90, 4);
  Stored turned(90, 200, 4);
  for (size_t r = 0; r < 200; ++r) {
    for (size_t k = 0; k < 90; ++k) turned.bits[k * 200 + r] = tensor.bits[r * 90 + k];
  }
  ThreadPool pool(2);
  for (const WeightFormat format : kFormats) {
    const auto straight = quantize_matrix(tensor.data, {false, 3, 190, 90}, format, pool);
    const auto across = quantize_matrix(turned.data, {true, 3, 190, 90}, format, pool);
    ASSERT_TRUE(straight.ok() && across.ok());
    EXPECT_EQ(hash_of(*straight), hash_of(*across));
  }
}

}  // namespace
}  // namespace tandem::weights
