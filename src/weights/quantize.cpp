#include "weights/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "arithmetic/dot.h"
#include "arithmetic/format.h"

namespace tandem::weights {
namespace {

using arithmetic::kGroup;

float clamp_scale(float scale) {
  return std::max(scale, arithmetic::kMinRowScale);
}

// Nearest integer, ties to even, for |x| < 2^22: the sum's last place is 1. Loops of it vectorize,
// which those of std::nearbyint do not.
constexpr float kShift = 12582912.0F;
float nearest(float x) {
  return (x + kShift) - kShift;
}

// Four lanes, added at the end: one order of a group's sums on every machine.
constexpr uint32_t kLanes = 4;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
Lanes load(const float* x) {
  Lanes lanes;
  std::memcpy(&lanes, x, sizeof(lanes));
  return lanes;
}
float total(Lanes lanes) {
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// A group's real-valued fit: w ~ scale * q - minimum.
struct Fit {
  float scale = 0;
  float minimum = 0;
};

// Nearest q in [low, high] for each weight of a group, and the squared error that is left.
float assign(const float* w, float scale, float minimum, float low, float high, float* q) {
  const float inverse = scale > 0 ? 1.0F / scale : 0.0F;
  const Lanes lowest = Lanes{} + low;
  const Lanes highest = Lanes{} + high;
  Lanes error{};
  for (uint32_t i = 0; i < kGroup; i += kLanes) {
    const Lanes weights = load(w + i);
    Lanes quants = (weights + minimum) * inverse;
    quants = quants < lowest ? lowest : quants;
    quants = quants > highest ? highest : quants;
    quants = (quants + kShift) - kShift;
    const Lanes d = quants * scale - minimum - weights;
    error += d * d;
    std::memcpy(q + i, &quants, sizeof(quants));
  }
  return total(error);
}

// Least squares for scale and minimum with the q fixed; the minimum may not be negative.
Fit refit(const float* w, const float* q) {
  Lanes lanes_q{};
  Lanes lanes_qq{};
  Lanes lanes_w{};
  Lanes lanes_qw{};
  for (uint32_t i = 0; i < kGroup; i += kLanes) {
    const Lanes quants = load(q + i);
    const Lanes weights = load(w + i);
    lanes_q += quants;
    lanes_qq += quants * quants;
    lanes_w += weights;
    lanes_qw += quants * weights;
  }
  const float sum_q = total(lanes_q);
  const float sum_qq = total(lanes_qq);
  const float sum_w = total(lanes_w);
  const float sum_qw = total(lanes_qw);
  constexpr auto kCount = static_cast<float>(kGroup);
  const float determinant = kCount * sum_qq - sum_q * sum_q;
  if (determinant > 0) {
    const float scale = (kCount * sum_qw - sum_q * sum_w) / determinant;
    const float minimum = (sum_q * sum_qw - sum_qq * sum_w) / determinant;
    if (scale > 0 && minimum >= 0) return {scale, minimum};
  }
  return {sum_qq > 0 ? std::max(0.0F, sum_qw / sum_qq) : 0.0F, 0.0F};
}

Fit fit_group(const float* w) {
  float lowest = 0;
  float highest = w[0];
  for (uint32_t i = 0; i < kGroup; ++i) {
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
      const float error = assign(w, fit.scale, fit.minimum, 0.0F, 15.0F, q);
      if (error < least) {
        least = error;
        best = fit;
      }
      fit = refit(w, q);
    }
  }
  return best;
}

// The group's own grid if it spans eight steps or more: so no scale is larger than a fit's could
// be.
Fit fit_group(const float* w, const GroupGrid& grid) {
  float lowest = 0;
  float highest = w[0];
  for (uint32_t i = 0; i < kGroup; ++i) {
    lowest = std::min(lowest, w[i]);
    highest = std::max(highest, w[i]);
  }
  const bool usable = grid.scale > 0 && grid.minimum >= 0 && 8.0F * grid.scale <= highest - lowest;
  return usable ? Fit{grid.scale, grid.minimum} : fit_group(w);
}

// The weights of a row in whole groups, the last one filled up with zeros.
std::vector<float> whole_groups(std::span<const float> row, size_t groups) {
  std::vector<float> weights(groups * kGroup);
  std::copy(row.begin(), row.end(), weights.begin());
  return weights;
}

// Writes the quants of group g that exist.
void store(const float* q, size_t g, float offset, std::span<uint8_t> quants) {
  const size_t n = std::min<size_t>(kGroup, quants.size() - g * kGroup);
  for (size_t i = 0; i < n; ++i) quants[g * kGroup + i] = static_cast<uint8_t>(q[i] + offset);
}

}  // namespace

float quantize_row8(std::span<const float> row, std::span<int8_t> quants) {
  float largest = 0;
  for (const float w : row) largest = std::max(largest, std::fabs(w));
  const float scale = clamp_scale(largest / 127.0F);
  for (size_t i = 0; i < row.size(); ++i) {
    const float q = std::min(127.0F, std::max(-127.0F, row[i] / scale));
    quants[i] = static_cast<int8_t>(nearest(q));
  }
  return scale;
}

float quantize_row4(std::span<const float> row, std::span<uint8_t> quants,
                    std::span<uint8_t> scales, std::span<uint8_t> minimums,
                    std::span<const GroupGrid> grids) {
  const size_t groups = scales.size();
  constexpr auto kUnit = static_cast<float>(arithmetic::kMinimumUnit);
  const std::vector<float> weights = whole_groups(row, groups);
  std::vector<Fit> fits(groups);
  float row_scale = arithmetic::kMinRowScale;
  for (size_t g = 0; g < groups; ++g) {
    const float* w = weights.data() + g * kGroup;
    fits[g] = grids.empty() ? fit_group(w) : fit_group(w, grids[g]);
    row_scale = std::max({row_scale, fits[g].scale / 63.0F, fits[g].minimum / (63.0F * kUnit)});
  }
  for (size_t g = 0; g < groups; ++g) {
    const float scale = nearest(fits[g].scale / row_scale);
    const float minimum = nearest(fits[g].minimum / (row_scale * kUnit));
    // The integers that a group may take are few: try the neighbours of the rounded fit.
    float q[kGroup];
    float kept[kGroup] = {};
    float least = INFINITY;
    for (int ds = -1; ds <= 1; ++ds) {
      for (int dm = -1; dm <= 1; ++dm) {
        const float s = std::clamp(scale + static_cast<float>(ds), 0.0F, 63.0F);
        const float m = std::clamp(minimum + static_cast<float>(dm), 0.0F, 63.0F);
        const float error = assign(weights.data() + g * kGroup, s * row_scale,
                                   m * kUnit * row_scale, 0.0F, 15.0F, q);
        if (error < least) {
          least = error;
          scales[g] = static_cast<uint8_t>(s);
          minimums[g] = static_cast<uint8_t>(m);
          std::copy_n(q, kGroup, kept);
        }
      }
    }
    store(kept, g, 0.0F, quants);
  }
  return row_scale;
}

float quantize_row6(std::span<const float> row, std::span<uint8_t> quants,
                    std::span<uint8_t> scales) {
  float largest = 0;
  for (const float w : row) largest = std::max(largest, std::fabs(w));
  const float row_scale = clamp_scale(largest / (31.0F * 127.0F));
  const std::vector<float> weights = whole_groups(row, scales.size());
  for (size_t g = 0; g < scales.size(); ++g) {
    const float* w = weights.data() + g * kGroup;
    float reach = 0;
    for (uint32_t i = 0; i < kGroup; ++i) reach = std::max(reach, std::fabs(w[i]));
    const float whole = nearest(reach / (31.0F * row_scale));
    float q[kGroup];
    float kept[kGroup] = {};
    float least = INFINITY;
    for (int ds = -2; ds <= 2; ++ds) {
      const float s = std::clamp(whole + static_cast<float>(ds), 0.0F, 127.0F);
      const float error = assign(w, s * row_scale, 0.0F, -32.0F, 31.0F, q);
      if (error < least) {
        least = error;
        scales[g] = static_cast<uint8_t>(s);
        std::copy_n(q, kGroup, kept);
      }
    }
    store(kept, g, 32.0F, quants);
  }
  return row_scale;
}

}  // namespace tandem::weights
