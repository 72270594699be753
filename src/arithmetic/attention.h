// Attention of one query head over one key/value head: exact integer sums throughout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arithmetic/exponential.h"
#include "arithmetic/format.h"

namespace tandem::arithmetic {

/// A vector of 16-bit integers that stand for value * 2^exponent.
struct Vector16 {
  std::span<const int16_t> values;
  int exponent = 0;
};

/// round_f32(scale * log2(e) * 65536): turns an integer score into units of 2^-16 of a power of
/// two.
float score_constant(double scale);

/// A score in units of 2^-16, logarithm to base 2: with n the exact sum of q[i] * k[i],
/// round(round_f32(n) * (constant * 2^E)) within +-2^30, E = q.exponent + k.exponent within +-100.
int32_t score(const Vector16& q, const Vector16& k, float constant);

/// A head's sink among its scores: round(logit * kLog2e16) within +-2^30; what is not a number
/// counts as -2^30. The logit is a weight of the model, not scaled as scores are.
int32_t sink_score(float logit);

/// The sink of a head that has none: so far below every score that it adds 0.
inline constexpr int32_t kNoSink = INT32_MIN;

/// Largest B below: it keeps the last exponent at -125 and more. Only a sink can reach it, with
/// values that together stay below 2^-78.
inline constexpr int32_t kMostShift = 94;

/// A score's part of the denominator at a distance from the largest:
/// shift_round(exp2_fraction(distance & 65535) << 24, distance >> 16), 0 from 42 * 65536 on.
inline uint64_t softmax_mass(uint32_t distance) {
  const uint32_t k = distance >> 16;
  if (k >= 42) return 0;
  return static_cast<uint64_t>(shift_round(int64_t{exp2_fraction(distance & 65535U)} << 24, k));
}

/// Keys and values at consecutive positions. `keys[j]` and `values[j]` are position first + j.
struct AttentionInput {
  Vector16 query;
  std::span<const Vector16> keys;
  std::span<const Vector16> values;
  uint32_t first =
      0;  ///< absolute position of keys[0]; blocks of kBlock are at multiples of kBlock
  float constant = 0;      ///< score_constant
  int32_t sink = kNoSink;  ///< sink_score of a head that has one
};

/// out[c] = sum_j softmax(score)_j * value_j[c]:
///   M = max(sink, score_0, score_1, ...)
///   d_j = M - score_j, k_j = d_j >> 16, m_j = exp2_fraction(d_j & 65535)
///   D   = softmax_mass(M - sink) + sum_j softmax_mass(d_j)
///   k'_j = k_j - values[j].exponent; b = the least k'_j of j's block
///   B   = the least of all k'_j and kMostShift
///   a_j = shift_round(m_j << 7, k'_j - b)                                    (0 from 24 on)
///   S   = sum over a block of a_j * v_j, |S| < 2^42
///   A   = sum over blocks of shift_round(S << 6, b - B)                      (0 from 63 on)
///   out = (round_f32(A) * (r.mantissa * 2^-40)) * 2^(r.exponent + 51 - B), r = reciprocal(D)
/// D is in [2^40, 2^58 + 2^40] and B in [-114, 94], so the last exponent is in [-125, 101].
/// At most 2^-20 of the mass is lost to the shifts at kMaxPositions; see docs/arithmetic.md.
void attention(const AttentionInput& input, std::span<float> out);

}  // namespace tandem::arithmetic
