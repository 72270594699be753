// Weights that leave their mapped file: the same weights elsewhere, never in the middle of a pass.
#include "kernels/cpu/weight_mover.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "support.h"

namespace tandem::kernels::cpu {
namespace {

PackedMatrix weights(uint32_t rows, uint32_t columns, uint32_t seed, bool mapped) {
  PackedMatrix matrix = make_packed(WeightFormat::k8, rows, columns);
  uint32_t state = seed;
  for (uint8_t& byte : matrix.data) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(1 + (state >> 16) % 255);
  }
  for (size_t i = 0; i < matrix.row_scales.size(); ++i) {
    matrix.row_scales[i] = static_cast<float>(1 + (seed + i) % 100);
  }
  matrix.mapped = mapped;
  return matrix;
}

bool same(const PackedMatrix& a, const PackedMatrix& b) {
  return std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end()) &&
         std::equal(a.row_scales.begin(), a.row_scales.end(), b.row_scales.begin(),
                    b.row_scales.end());
}

// More than may wait to be taken, in matrices of every size.
std::vector<PackedMatrix> model(bool mapped) {
  std::vector<PackedMatrix> matrices;
  for (uint32_t i = 0; i < 12; ++i) {
    matrices.push_back(weights(16 << i % 9, 3000 + i * 64, i, mapped && i % 4 != 3));
  }
  matrices.push_back(weights(16000, 2500, 99, mapped));
  return matrices;
}

TEST(WeightMover, MovesWhatIsMappedAndNothingElse) {
  const std::vector<PackedMatrix> expected = model(false);
  std::vector<PackedMatrix> matrices = model(true);
  std::vector<const uint8_t*> before;
  std::vector<bool> mapped;
  for (const PackedMatrix& matrix : matrices) {
    before.push_back(matrix.data.data());
    mapped.push_back(matrix.mapped);
  }
  ThreadPool pool(2);
  WeightMover mover;
  // Bits of time, in most of which no matrix gets done.
  int calls = 1;
  while (!mover.move(matrices, pool, WeightMover::Clock::now() + std::chrono::microseconds(200))) {
    for (size_t i = 0; i < matrices.size(); ++i) {
      EXPECT_TRUE(same(matrices[i], expected[i])) << i;
    }
    ASSERT_LT(++calls, 1'000'000);
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    EXPECT_TRUE(same(matrices[i], expected[i])) << i;
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    EXPECT_FALSE(matrices[i].mapped) << i;
    EXPECT_EQ(matrices[i].data.data() != before[i], mapped[i]) << i;
  }
}

TEST(WeightMover, MovesNothingWithoutTime) {
  std::vector<PackedMatrix> matrices = model(true);
  ThreadPool pool(2);
  WeightMover mover;
  EXPECT_FALSE(mover.move(matrices, pool, WeightMover::Clock::now()));
  EXPECT_TRUE(matrices[0].mapped);
}

TEST(WeightMover, HasNothingToDoWithoutMappedMatrices) {
  std::vector<PackedMatrix> matrices = model(false);
  ThreadPool pool(2);
  WeightMover mover;
  EXPECT_TRUE(mover.move(matrices, pool, WeightMover::Clock::now() + std::chrono::hours(1)));
}

TEST(WeightMover, ABackendsPassesGiveTheSameBitsMeanwhile) {
  constexpr uint32_t kRows = 3000;
  constexpr uint32_t kColumns = 1000;
  const auto pool = std::make_shared<ThreadPool>(2);
  std::vector<std::vector<uint32_t>> answers[2];
  for (const bool mapped : {false, true}) {
    auto backend = make_cpu_backend("best", pool);
    ASSERT_TRUE(backend.ok());
    std::vector<Matrix> matrices;
    for (uint32_t i = 0; i < 12; ++i) {
      matrices.push_back(*(*backend)->add_matrix(weights(kRows, kColumns, i, mapped)));
    }
    const Floats in = (*backend)->add_floats(kColumns);
    const Floats out = (*backend)->add_floats(kRows);
    const Activations x = (*backend)->add_activations(kColumns);
    const Norm norm{false, (*backend)->add_vector(std::vector<float>(kColumns, 1.0F)),
                    (*backend)->add_vector(std::vector<float>(kColumns, 0.0F)),
                    arithmetic::NormConstants(kColumns, 1e-6)};
    std::vector<uint16_t> half(kColumns, 0x3c00);
    for (uint32_t c = 0; c < kColumns; ++c) half[c] = static_cast<uint16_t>(0x3800 + c);
    const std::vector<int16_t> exponents(1, 0);
    for (int pass = 0; pass < 10; ++pass) {
      ASSERT_TRUE((*backend)->begin(1).ok());
      for (const Matrix matrix : matrices) {
        (*backend)->load_hidden(half, exponents, in);
        (*backend)->norm(in, norm, x);
        const Product product{matrix, out, false, {}};
        (*backend)->matmul(x, {&product, 1});
        std::vector<float> values(kRows);
        (*backend)->read(out, 0, 1, values);
        answers[mapped ? 1 : 0].push_back(std::vector<uint32_t>());
        for (const float value : values) {
          answers[mapped ? 1 : 0].back().push_back(std::bit_cast<uint32_t>(value));
        }
      }
      ASSERT_TRUE((*backend)->finish().ok());
    }
  }
  EXPECT_EQ(answers[0], answers[1]);
}

}  // namespace
}  // namespace tandem::kernels::cpu
