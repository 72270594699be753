// Attention of one query head over one key/value head: exact integer sums throughout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

/// Keys and values at consecutive positions. `keys[j]` and `values[j]` are position first + j.
struct AttentionInput {
  Vector16 query;
  std::span<const Vector16> keys;
  std::span<const Vector16> values;
  uint32_t first =
      0;  ///< absolute position of keys[0]; blocks of kBlock are at multiples of kBlock
  float constant = 0;  ///< score_constant
};

/// out[c] = sum_j softmax(score)_j * value_j[c]:
///   d_j = max(score) - score_j, k_j = d_j >> 16, m_j = exp2_fraction(d_j & 65535)
///   D   = sum_j shift_round(m_j << 24, k_j)                                  (0 from k_j = 42 on)
///   k'_j = k_j - values[j].exponent; b = the least k'_j of j's block; B = the least of all
///   a_j = shift_round(m_j << 7, k'_j - b)                                    (0 from 24 on)
///   S   = sum over a block of a_j * v_j, |S| < 2^42
///   A   = sum over blocks of shift_round(S << 6, b - B)                      (0 from 63 on)
///   out = (round_f32(A) * (r.mantissa * 2^-40)) * 2^(r.exponent + 51 - B), r = reciprocal(D)
/// D is in [2^40, 2^58] and B in [-114, 94], so the last exponent is in [-125, 101].
/// At most 2^-20 of the mass is lost to the shifts at kMaxPositions; see docs/arithmetic.md.
void attention(const AttentionInput& input, std::span<float> out);

}  // namespace tandem::arithmetic
