// The packed layout: what is stored comes back, padding included.
#include "kernels/packed.h"

#include "support.h"

namespace tandem::kernels {
namespace {

TEST(Packed, EightBitRowsComeBack) {
  cpu::Random random(1);
  for (const uint32_t columns : {1U, 3U, 4U, 63U, 64U, 65U, 200U}) {
    PackedMatrix matrix = make_packed(WeightFormat::k8, 19, columns);
    std::vector<std::vector<int8_t>> rows(19, std::vector<int8_t>(columns));
    for (uint32_t r = 0; r < 19; ++r) {
      for (int8_t& w : rows[r]) w = static_cast<int8_t>(random.integer(-127, 127));
      store_row8(matrix, r, rows[r], static_cast<float>(r) + 0.5F);
    }
    for (uint32_t r = 0; r < 19; ++r) {
      std::vector<int32_t> back(columns);
      load_row(matrix, r, back);
      EXPECT_EQ(back, std::vector<int32_t>(rows[r].begin(), rows[r].end()));
      EXPECT_EQ(matrix.row_scales[r], static_cast<float>(r) + 0.5F);
    }
    EXPECT_EQ(matrix.bytes(), PackedMatrix::bytes_for(WeightFormat::k8, 19, columns));
    EXPECT_EQ(matrix.row_scales.size(), 32U);
  }
}

class PackedGroups : public testing::TestWithParam<WeightFormat> {};

TEST_P(PackedGroups, RowsComeBack) {
  cpu::Random random(2);
  const bool four = GetParam() == WeightFormat::k4;
  for (const uint32_t columns : {1U, 31U, 32U, 33U, 64U, 100U, 192U, 600U}) {
    PackedMatrix matrix = make_packed(GetParam(), 19, columns);
    const uint32_t groups = (columns + 31) / 32;
    std::vector<std::vector<int32_t>> expected(19, std::vector<int32_t>(columns));
    for (uint32_t r = 0; r < 19; ++r) {
      std::vector<uint8_t> quants(columns);
      std::vector<uint8_t> scales(groups);
      std::vector<uint8_t> minimums(groups);
      for (uint8_t& q : quants) q = static_cast<uint8_t>(random.integer(0, four ? 15 : 63));
      for (uint8_t& s : scales) s = static_cast<uint8_t>(random.integer(0, four ? 63 : 127));
      for (uint8_t& m : minimums) m = static_cast<uint8_t>(random.integer(0, 63));
      for (uint32_t k = 0; k < columns; ++k) {
        expected[r][k] = four ? scales[k / 32] * quants[k] - 8 * minimums[k / 32]
                              : scales[k / 32] * (quants[k] - 32);
      }
      if (four) {
        store_row4(matrix, r, quants, scales, minimums, 1.0F);
      } else {
        store_row6(matrix, r, quants, scales, 1.0F);
      }
    }
    for (uint32_t r = 0; r < 19; ++r) {
      std::vector<int32_t> back(columns);
      load_row(matrix, r, back);
      EXPECT_EQ(back, expected[r]) << columns;
    }
    EXPECT_EQ(matrix.bytes(), PackedMatrix::bytes_for(GetParam(), 19, columns));
    EXPECT_EQ(matrix.tile_bytes() % 64, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PackedGroups, testing::Values(WeightFormat::k4, WeightFormat::k6),
                         [](const auto& test) {
                           return test.param == WeightFormat::k4 ? "Weights4" : "Weights6";
                         });

TEST(Packed, PaddingWeightsOfEightBitsAreZero) {
  const PackedMatrix matrix = make_packed(WeightFormat::k8, 1, 5);
  ASSERT_EQ(matrix.data.size(), 64U * 16);
  for (size_t i = 0; i < matrix.data.size(); ++i) EXPECT_EQ(matrix.data[i], 128);
}

}  // namespace
}  // namespace tandem::kernels
