// Activation functions of the MLP. Products and single sums, each rounded once.
#pragma once

#include <cstdint>

#include "arithmetic/exponential.h"
#include "arithmetic/format.h"

namespace tandem::arithmetic {

/// logistic(x) as binary32: exact product of its integer and a power of two.
inline float logistic_f32(float x) {
  const Scaled s = logistic(x);
  return static_cast<float>(s.mantissa) * power_of_two(s.exponent);
}

/// (gate * logistic(gate)) * up: SwiGLU's elementwise part.
inline float gated_silu(float gate, float up) {
  const float silu = gate * logistic_f32(gate);
  return silu * up;
}

/// gpt-oss's gated activation: with g = min(gate, limit) and u = up within +-limit,
/// (u + 1) * (g * logistic(g * alpha)). What is not a number stays so.
inline float clamped_swiglu(float gate, float up, float alpha, float limit) {
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : up < -limit ? -limit : up;
  const float argument = g * alpha;
  const float glu = g * logistic_f32(argument);
  const float shifted = u + 1.0F;
  return shifted * glu;
}

/// GPT-2's gelu_new, x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), written as
/// x * logistic(x * (c0 + c1 * (x * x))) with c0 = 2 sqrt(2 / pi) and c1 = 0.044715 c0.
inline float gelu_tanh(float x) {
  const float square = x * x;
  const float cubic = square * 0.07135481282F;
  const float sum = cubic + 1.59576912161F;
  const float argument = x * sum;
  return x * logistic_f32(argument);
}

/// gelu_tanh(gate) * up: GeGLU's elementwise part.
inline float gated_gelu(float gate, float up) {
  const float gelu = gelu_tanh(gate);
  return gelu * up;
}

}  // namespace tandem::arithmetic
