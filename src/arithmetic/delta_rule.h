// Gated delta net: a layer whose memory is a matrix a head that every token decays and corrects.
// Tokens advance one by one in a fixed order, so a pass of N tokens is N passes of one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "arithmetic/format.h"

namespace tandem::arithmetic {

/// Columns of a state that lie together: a block is [key_dim][kStateColumns] binary32.
inline constexpr uint32_t kStateColumns = 16;
/// Sums over key_dim run in this many interleaved parts: row i belongs to part i % kStateSums.
inline constexpr uint32_t kStateSums = 4;
/// Magnitudes below 2^-63 count as zero in a state: their exponent's two highest bits are clear.
/// So no product of a step is ever subnormal, and machines that flush subnormals agree.
inline constexpr uint32_t kStateBits = 0x60000000U;
/// Weights of the convolution below 2^-40 count as zero, for the same reason.
inline constexpr float kLeastConvolutionWeight = 0x1p-40F;
/// Unit of normalized keys and queries.
inline constexpr int kUnitBits = 20;
/// A decay below 2^-24 is 0.
inline constexpr float kMostDecay = 24.0F;
/// Largest |A_log| that is taken.
inline constexpr double kMostLogDecay = 30.0;

/// x, or 0 if |x| < 2^-63. Infinity and NaN stay.
inline float state_value(float x) {
  return (std::bit_cast<uint32_t>(x) & kStateBits) != 0 ? x : 0.0F;
}

/// 2^(-x * 2^-32) in units of 2^-32, for x in [0, 2^32): with y = floor(x ln2), the series
/// 1 - y/1 (1 - y/2 (1 - y/3 (… - y/12))), each product cut to 32 bits. Error < 4 units.
uint64_t exp2_fraction32(uint32_t x);

/// round_f32(exp(a_log) * log2(e)) for |a_log| <= kMostLogDecay: on doubles with + and * alone.
float decay_constant(double a_log);

/// log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|) in units of 2^-32, its logarithm
/// 2 atanh(e / (2 + e)) in units of 2^-30 by ten terms of the series. Absolute error < 2^-28 and
/// 2^-23 of max(x, 0).
float softplus(float x);

/// exp(-exp(A_log) softplus(a + dt_bias)) as 2^-r, r = softplus(a + dt_bias) * constant. In [0, 1];
/// 0 from r = 24 on. Absolute error < 2^-24 beside what softplus and the product have.
float decay(float a, float dt_bias, float constant);

/// silu of a causal convolution of one channel: s = w[0] x[0]; s = s + w[i] x[i] from the oldest
/// value to the newest; s * logistic(s). Values have passed state_value; weights are 0 or at least
/// kLeastConvolutionWeight.
float convolve(const float* x, size_t stride, const float* weights, size_t weight_stride,
               uint32_t kernel);

/// y[i] = round(x[i] * f * 2^20) * 2^-20 with f = 1 / sqrt(sum of x^2 + 1e-6), the sum that of the
/// 16-bit integers q = quantize(x). `scratch` holds n values. Returns false if x is not finite or
/// its exponent is above kMaxNormExponent.
[[nodiscard]] bool unit_vector(std::span<const float> x, std::span<int16_t> scratch,
                               std::span<float> y);

/// What one token brings to a head: unit vectors of key_dim values, and a decay and a rate.
struct DeltaToken {
  const float* key = nullptr;
  const float* query = nullptr;  ///< null: only the state advances
  float decay = 0;
  float rate = 0;   ///< beta, in [0, 1]
  float scale = 0;  ///< of the output
};

/// One token's step of a block of columns, state S to T (which may be the same memory):
///   m[j] = decay * sum_i S[i][j] key[i]
///   d[j] = state_value((value[j] - m[j]) * rate)
///   T[i][j] = state_value(S[i][j] * decay + key[i] * d[j])
///   out[j] = scale * sum_i T[i][j] query[i]
/// Every operation is rounded to binary32. A sum has kStateSums parts, each from 0 over its rows in
/// rising order; they are joined as (s0 + s1) + (s2 + s3). key_dim is a multiple of kStateSums.
void delta_step(const float* from, float* to, uint32_t key_dim, const DeltaToken& token,
                const float* value, float* out);

}  // namespace tandem::arithmetic
