#include "weights/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "arithmetic/dot.h"
#include "arithmetic/format.h"
#include "weights/dtype.h"

namespace tandem::weights {
namespace {

using arithmetic::kGroup;

float clamp_scale(float scale) {
  return std::max(scale, arithmetic::kMinRowScale);
}

// A group's real-valued fit: w ~ scale * q - minimum.
struct Fit {
  float scale = 0;
  float minimum = 0;
};

// Nearest q in [0, 15] for each weight of a group, and the squared error that is left.
float assign(const float* w, uint32_t n, float scale, float minimum, float* q) {
  const float inverse = scale > 0 ? 1.0F / scale : 0.0F;
  float error = 0;
  for (uint32_t i = 0; i < n; ++i) {
    q[i] = std::min(15.0F, std::max(0.0F, std::nearbyintf((w[i] + minimum) * inverse)));
    const float d = scale * q[i] - minimum - w[i];
    error += d * d;
  }
  return error;
}

// Least squares for scale and minimum with the q fixed; the minimum may not be negative.
Fit refit(const float* w, uint32_t n, const float* q) {
  float sum_q = 0;
  float sum_qq = 0;
  float sum_w = 0;
  float sum_qw = 0;
  for (uint32_t i = 0; i < n; ++i) {
    sum_q += q[i];
    sum_qq += q[i] * q[i];
    sum_w += w[i];
    sum_qw += q[i] * w[i];
  }
  const auto count = static_cast<float>(n);
  const float determinant = count * sum_qq - sum_q * sum_q;
  if (determinant > 0) {
    const float scale = (count * sum_qw - sum_q * sum_w) / determinant;
    const float minimum = (sum_q * sum_qw - sum_qq * sum_w) / determinant;
    if (scale > 0 && minimum >= 0) return {scale, minimum};
  }
  return {sum_qq > 0 ? std::max(0.0F, sum_qw / sum_qq) : 0.0F, 0.0F};
}

Fit fit_group(const float* w, uint32_t n) {
  float lowest = 0;
  float highest = w[0];
  for (uint32_t i = 0; i < n; ++i) {
    lowest = std::min(lowest, w[i]);
    highest = std::max(highest, w[i]);
  }
  const float range = highest - lowest;
  if (!(range > 0)) return {0.0F, -lowest};
  float q[kGroup];
  Fit best;
  float least = INFINITY;
  // Finer and coarser grids than the plain one, each improved by least squares twice.
  for (int step = -2; step <= 4; ++step) {
    Fit fit{range / (15.0F + 0.5F * static_cast<float>(step)), -lowest};
    for (int round = 0; round < 3; ++round) {
      const float error = assign(w, n, fit.scale, fit.minimum, q);
      if (error < least) {
        least = error;
        best = fit;
      }
      fit = refit(w, n, q);
    }
  }
  return best;
}

}  // namespace

float quantize_row8(std::span<const float> row, std::span<int8_t> quants) {
  float largest = 0;
  for (const float w : row) largest = std::max(largest, std::fabs(w));
  const float scale = clamp_scale(largest / 127.0F);
  for (size_t i = 0; i < row.size(); ++i) {
    const float q = std::nearbyintf(row[i] / scale);
    quants[i] = static_cast<int8_t>(std::clamp(q, -127.0F, 127.0F));
  }
  return scale;
}

float quantize_row4(std::span<const float> row, std::span<uint8_t> quants,
                    std::span<uint8_t> scales, std::span<uint8_t> minimums) {
  const size_t groups = scales.size();
  constexpr auto kUnit = static_cast<float>(arithmetic::kMinimumUnit);
  std::vector<Fit> fits(groups);
  float row_scale = arithmetic::kMinRowScale;
  for (size_t g = 0; g < groups; ++g) {
    const auto n = static_cast<uint32_t>(std::min<size_t>(kGroup, row.size() - g * kGroup));
    fits[g] = fit_group(row.data() + g * kGroup, n);
    row_scale = std::max({row_scale, fits[g].scale / 63.0F, fits[g].minimum / (63.0F * kUnit)});
  }
  for (size_t g = 0; g < groups; ++g) {
    const float* w = row.data() + g * kGroup;
    const auto n = static_cast<uint32_t>(std::min<size_t>(kGroup, row.size() - g * kGroup));
    const float scale = std::nearbyintf(fits[g].scale / row_scale);
    const float minimum = std::nearbyintf(fits[g].minimum / (row_scale * kUnit));
    // The integers that a group may take are few: try the neighbours of the rounded fit.
    float q[kGroup];
    float kept[kGroup] = {};
    float least = INFINITY;
    for (int ds = -1; ds <= 1; ++ds) {
      for (int dm = -1; dm <= 1; ++dm) {
        const float s = std::clamp(scale + static_cast<float>(ds), 0.0F, 63.0F);
        const float m = std::clamp(minimum + static_cast<float>(dm), 0.0F, 63.0F);
        const float error = assign(w, n, s * row_scale, m * kUnit * row_scale, q);
        if (error < least) {
          least = error;
          scales[g] = static_cast<uint8_t>(s);
          minimums[g] = static_cast<uint8_t>(m);
          std::copy_n(q, n, kept);
        }
      }
    }
    for (uint32_t i = 0; i < n; ++i) quants[g * kGroup + i] = static_cast<uint8_t>(kept[i]);
  }
  return row_scale;
}

float quantize_row6(std::span<const float> row, std::span<uint8_t> quants,
                    std::span<uint8_t> scales) {
  float largest = 0;
  for (const float w : row) largest = std::max(largest, std::fabs(w));
  const float row_scale = clamp_scale(largest / (31.0F * 127.0F));
  for (size_t g = 0; g < scales.size(); ++g) {
    const float* w = row.data() + g * kGroup;
    const auto n = static_cast<uint32_t>(std::min<size_t>(kGroup, row.size() - g * kGroup));
    float reach = 0;
    for (uint32_t i = 0; i < n; ++i) reach = std::max(reach, std::fabs(w[i]));
    const float whole = std::nearbyintf(reach / (31.0F * row_scale));
    float least = INFINITY;
    for (int ds = -2; ds <= 2; ++ds) {
      const float s = std::clamp(whole + static_cast<float>(ds), 0.0F, 127.0F);
      const float scale = s * row_scale;
      const float inverse = scale > 0 ? 1.0F / scale : 0.0F;
      float q[kGroup];
      float error = 0;
      for (uint32_t i = 0; i < n; ++i) {
        q[i] = std::min(31.0F, std::max(-32.0F, std::nearbyintf(w[i] * inverse)));
        const float d = scale * q[i] - w[i];
        error += d * d;
      }
      if (error < least) {
        least = error;
        scales[g] = static_cast<uint8_t>(s);
        for (uint32_t i = 0; i < n; ++i) {
          quants[g * kGroup + i] = static_cast<uint8_t>(static_cast<int>(q[i]) + 32);
        }
      }
    }
  }
  return row_scale;
}

Result<kernels::PackedMatrix> quantize_matrix(const TensorData& tensor, const MatrixPart& part,
                                              kernels::WeightFormat format, ThreadPool& pool) {
  const TensorInfo& info = tensor.info;
  const uint64_t across = part.transposed ? 1 : 0;
  if (info.shape.size() != 2 || info.shape[1 - across] != part.columns ||
      info.shape[across] < uint64_t{part.first_row} + part.rows) {
    return invalid("tensor " + info.name + ": its shape does not hold " +
                   std::to_string(part.first_row + part.rows) + " rows of " +
                   std::to_string(part.columns));
  }
  if (part.columns > arithmetic::kMaxRow) {
    return unsupported("tensor " + info.name + ": rows of " + std::to_string(part.columns) +
                       " are longer than " + std::to_string(arithmetic::kMaxRow));
  }
  kernels::PackedMatrix matrix = kernels::make_packed(format, part.rows, part.columns);
  if (matrix.data.size() == 0) {
    return Error{ErrorKind::kMemory,
                 "tensor " + info.name + ": no memory for " +
                     std::to_string(matrix.bytes_for(format, part.rows, part.columns)) +
                     " bytes of weights"};
  }
  const uint64_t element = size_of(info.dtype);
  const uint64_t stride = info.shape[1];
  std::atomic<bool> bad{false};
  // Sixteen rows at a time: a tile is written by one thread, and a transposed tensor is read in
  // pieces of whole cache lines.
  pool.split(kernels::tile_count(part.rows), 1, [&](uint64_t begin, uint64_t end) {
    std::vector<float> rows(size_t{kernels::kTileRows} * part.columns);
    std::vector<float> piece(kernels::kTileRows);
    std::vector<int8_t> quants8(part.columns);
    std::vector<uint8_t> quants(part.columns);
    const size_t groups = (part.columns + kGroup - 1) / kGroup;
    std::vector<uint8_t> scales(groups);
    std::vector<uint8_t> minimums(groups);
    for (uint64_t tile = begin; tile < end; ++tile) {
      const auto first = static_cast<uint32_t>(tile * kernels::kTileRows);
      const uint32_t count = std::min(kernels::kTileRows, part.rows - first);
      bool ok = true;
      if (part.transposed) {
        for (uint32_t k = 0; k < part.columns; ++k) {
          const uint64_t offset = (uint64_t{k} * stride + part.first_row + first) * element;
          ok = widen(info.dtype, tensor.bytes.subspan(offset, count * element),
                     std::span(piece).first(count))
                   .ok() &&
               ok;
          for (uint32_t r = 0; r < count; ++r) rows[size_t{r} * part.columns + k] = piece[r];
        }
      } else {
        const uint64_t offset = (uint64_t{part.first_row} + first) * stride * element;
        ok = widen(info.dtype, tensor.bytes.subspan(offset, uint64_t{count} * stride * element),
                   std::span(rows).first(size_t{count} * part.columns))
                 .ok();
      }
      for (uint32_t r = 0; r < count; ++r) {
        const std::span<const float> row(rows.data() + size_t{r} * part.columns, part.columns);
        // Written so that NaN counts as too large.
        const bool usable = std::all_of(row.begin(), row.end(), [](float w) {
          return std::fabs(w) <= arithmetic::kMaxRowScale * 127.0F;
        });
        if (!usable || !ok) {
          bad.store(true);
          continue;
        }
        switch (format) {
          case kernels::WeightFormat::k8: {
            const float scale = quantize_row8(row, quants8);
            kernels::store_row8(matrix, first + r, quants8, scale);
            break;
          }
          case kernels::WeightFormat::k4: {
            const float scale = quantize_row4(row, quants, scales, minimums);
            kernels::store_row4(matrix, first + r, quants, scales, minimums, scale);
            break;
          }
          case kernels::WeightFormat::k6: {
            const float scale = quantize_row6(row, quants, scales);
            kernels::store_row6(matrix, first + r, quants, scales, scale);
            break;
          }
        }
      }
    }
  });
  if (bad.load()) {
    TANDEM_TRY(check_finite(tensor));
    return unsupported("tensor " + info.name + ": a weight is beyond " +
                       std::to_string(static_cast<int>(arithmetic::kMaxRowScale * 127.0F)));
  }
  return matrix;
}

Result<std::vector<float>> read_vector(const TensorData& tensor, uint64_t first, uint64_t count) {
  if (first > tensor.info.elements() || count > tensor.info.elements() - first) {
    return invalid("tensor " + tensor.info.name + ": holds " +
                   std::to_string(tensor.info.elements()) + " values, wanted " +
                   std::to_string(count) + " from " + std::to_string(first));
  }
  TANDEM_TRY(check_finite(tensor));
  std::vector<float> values(count);
  const uint64_t element = size_of(tensor.info.dtype);
  TANDEM_TRY(
      widen(tensor.info.dtype, tensor.bytes.subspan(first * element, count * element), values));
  return values;
}

}  // namespace tandem::weights
