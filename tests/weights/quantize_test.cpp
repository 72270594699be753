// Quantizing gives one set of integers: every instruction set's tile against the scalar rows, and
// whole matrices against both.
#include "weights/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "arithmetic/dot.h"
#include "arithmetic/hidden.h"
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

TEST_P(EachSet, GivesTheScalarIntegersOfGrids) {
  std::mt19937 random(8);
  for (const uint32_t columns : {32U, 64U, 96U, 384U}) {
    for (const uint32_t rows : {16U, 5U}) {
      TileShape shape{WeightFormat::k4, columns, rows};
      TileScratch scratch(WeightFormat::k4, columns);
      ASSERT_TRUE(scratch.ok());
      std::vector<float> grids(scratch.fits.size());
      for (uint32_t k = 0; k < columns; ++k) {
        for (uint32_t r = 0; r < rows; ++r) {
          // Some that span their sixteen steps, some that don't, some without.
          const auto kind = static_cast<int>((k / 32 + r) % 5);
          const float scale = kind == 4 ? 0.0F : 0x1p-7F * static_cast<float>(1 + r);
          const float minimum = scale * static_cast<float>(kind == 3 ? -2 : 3 * kind);
          const auto q = static_cast<float>(kind == 2 ? random() % 4 : random() % 8 + random() % 9);
          scratch.weights[size_t{k} * kTileRows + r] = scale * q - minimum;
          grids[k / 32 * size_t{2} * kTileRows + r] = scale;
          grids[(k / 32 * size_t{2} + 1) * kTileRows + r] = minimum;
        }
      }
      const auto with_grids = [&](TileQuantizer quantizer, bool use) {
        shape.grids = use;
        std::copy(grids.begin(), grids.end(), scratch.fits.data());
        return run(quantizer, shape, scratch);
      };
      const Tile expected = with_grids(quantize_tile_reference, true);
      const Tile found = with_grids(GetParam().run, true);
      ASSERT_TRUE(expected.usable && found.usable);
      EXPECT_EQ(found.bytes, expected.bytes) << columns << " columns, " << rows << " rows";
      EXPECT_EQ(found.row_scales, expected.row_scales);
      EXPECT_NE(with_grids(GetParam().run, false).bytes, expected.bytes);
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

TEST(Quantize, ARestIsWhatTheFirstPlaneLeaves) {
  const Stored tensor(330, 1000, 5);
  std::vector<float> row(1000);
  std::vector<int8_t> quants(1000);
  const MatrixPart part{false, 10, 310, 1000};
  MatrixPart rest = part;
  rest.rest = true;
  auto expected = kernels::make_packed(WeightFormat::k8, part.rows, part.columns);
  std::vector<float> scales(part.rows);
  for (uint32_t r = 0; r < part.rows; ++r) {
    ASSERT_TRUE(widen(DType::kBF16, tensor.data.bytes.subspan((10 + r) * 2000UL, 2000), row).ok());
    scales[r] = quantize_row8(row, quants);
    for (uint32_t k = 0; k < part.columns; ++k) {
      const float kept = static_cast<float>(quants[k]) * scales[r];
      row[k] -= kept;
    }
    const float scale = quantize_row8(row, quants);
    EXPECT_LT(scale, std::max(scales[r] / 200.0F, arithmetic::kMinRowScale * 1.5F)) << "row " << r;
    kernels::store_row8(expected, r, quants, scale);
  }
  for (const uint32_t threads : {1U, 3U}) {
    ThreadPool pool(threads);
    const auto found = quantize_matrix(tensor.data, rest, WeightFormat::k8, pool);
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(hash_of(*found), hash_of(expected));
    EXPECT_FALSE(quantize_matrix(tensor.data, rest, WeightFormat::k4, pool).ok());
  }
}

// Root of the mean square of what a matrix is off by, relative to the tensor's.
double relative_error(const kernels::PackedMatrix& matrix, std::span<const float> values) {
  std::vector<int32_t> integers(matrix.columns);
  double error = 0;
  double squares = 0;
  for (uint32_t r = 0; r < matrix.rows; ++r) {
    kernels::load_row(matrix, r, integers);
    for (uint32_t k = 0; k < matrix.columns; ++k) {
      const double value = values[size_t{r} * matrix.columns + k];
      error += std::pow(integers[k] * double{matrix.row_scales[r]} - value, 2);
      squares += value * value;
    }
  }
  return std::sqrt(error / squares);
}

TEST(Quantize, BlocksOf4BitsKeepTheirGrids) {
  constexpr uint32_t kRows = 40;
  constexpr uint32_t kColumns = 512;
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  // Q4_0 as llama.cpp makes it: the largest magnitude is eight steps, of either sign.
  std::vector<uint8_t> blocks;
  for (uint32_t block = 0; block < kRows * kColumns / 32; ++block) {
    std::array<float, 32> x;
    for (float& value : x) value = normal(random);
    const float most = *std::ranges::max_element(x, {}, [](float v) { return std::fabs(v); });
    const uint16_t bits = arithmetic::to_half(most / -8.0F);
    const float d = arithmetic::from_half(bits);
    blocks.push_back(static_cast<uint8_t>(bits & 255));
    blocks.push_back(static_cast<uint8_t>(bits >> 8));
    const auto nibble = [&](size_t i) {
      return static_cast<int>(std::clamp(x[i] / d + 8.5F, 0.0F, 15.0F));
    };
    for (size_t i = 0; i < 16; ++i) {
      blocks.push_back(static_cast<uint8_t>(nibble(i) | nibble(i + 16) << 4));
    }
  }
  TensorData stored;
  stored.info = {"w", DType::kQ4_0, {kRows, kColumns}};
  stored.bytes = std::as_bytes(std::span(blocks));
  std::vector<float> values(size_t{kRows} * kColumns);
  ASSERT_TRUE(widen(DType::kQ4_0, stored.bytes, values).ok());
  TensorData plain;
  plain.info = {"w", DType::kF32, {kRows, kColumns}};
  plain.bytes = std::as_bytes(std::span(values));
  ThreadPool pool(2);
  const MatrixPart part{false, 0, kRows, kColumns};
  const auto kept = quantize_matrix(stored, part, WeightFormat::k4, pool);
  const auto fitted = quantize_matrix(plain, part, WeightFormat::k4, pool);
  ASSERT_TRUE(kept.ok() && fitted.ok());
  EXPECT_LT(relative_error(*kept, values), 0.015);
  EXPECT_GT(relative_error(*fitted, values), 0.025);
  // A part that begins in the middle, row by row the same.
  const auto later = quantize_matrix(stored, {false, 7, 20, kColumns}, WeightFormat::k4, pool);
  ASSERT_TRUE(later.ok());
  std::vector<int32_t> one(kColumns);
  std::vector<int32_t> other(kColumns);
  for (uint32_t r = 0; r < 20; ++r) {
    kernels::load_row(*later, r, one);
    kernels::load_row(*kept, r + 7, other);
    EXPECT_EQ(one, other);
    EXPECT_EQ(later->row_scales[r], kept->row_scales[r + 7]);
  }
}

TEST(Quantize, AnyBytesAsBlocksOf4BitsGiveScalesInRangeOrAnError) {
  std::mt19937 random(10);
  ThreadPool pool(1);
  size_t usable = 0;
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ4K, DType::kInt4Group}) {
    for (int round = 0; round < 500; ++round) {
      std::vector<uint8_t> blocks(bytes_of(dtype, 256));
      for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
      // Long runs, so that scales meet weights that don't use them.
      if (round % 2 == 0) {
        const size_t from = random() % blocks.size();
        std::fill(blocks.begin() + static_cast<std::ptrdiff_t>(from), blocks.end(),
                  static_cast<uint8_t>(round % 4 == 0 ? 0x88 : 0x08));
      }
      TensorData stored;
      stored.info = {"w", dtype, {1, 256}};
      stored.bytes = std::as_bytes(std::span(blocks));
      const auto matrix = quantize_matrix(stored, {false, 0, 1, 256}, WeightFormat::k4, pool);
      if (!matrix.ok()) continue;
      ++usable;
      EXPECT_GE(matrix->row_scales[0], arithmetic::kMinRowScale);
      EXPECT_LE(matrix->row_scales[0], arithmetic::kMaxRowScale);
    }
  }
  EXPECT_GT(usable, 500U);
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
