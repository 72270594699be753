#include "arithmetic/delta_rule.h"

#include <cmath>

#include "arithmetic/activation.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"

namespace tandem::arithmetic {
namespace {

constexpr uint64_t kOne32 = uint64_t{1} << 32;
constexpr uint64_t kLn2 = 2977044472U;  // ln(2) * 2^32
constexpr float kLog2e = 1.44269504F;

using Block = float[kStateColumns];

// log(1 + e) for e in units of 2^-32 up to 2^32, in units of 2^-30.
uint64_t log_one_plus(uint64_t e) {
  const uint64_t z = (e << 31) / (2 * kOne32 + e);  // below 2^31 / 3
  const uint64_t square = (z * z) >> 31;
  uint64_t sum = (uint64_t{1} << 31) / 19;
  for (uint32_t pairs = 9; pairs != 0; --pairs) {
    sum = (uint64_t{1} << 31) / (2 * pairs - 1) + ((square * sum) >> 31);
  }
  return (z * sum) >> 31;
}

}  // namespace

uint64_t exp2_fraction32(uint32_t x) {
  const uint64_t y = (x * kLn2) >> 32;
  uint64_t t = kOne32;
  for (uint32_t n = 12; n != 0; --n) t = kOne32 - ((y * t) >> 32) / n;
  return t;
}

float decay_constant(double a_log) {
  constexpr double kInverseLn2 = 1.4426950408889634;
  constexpr double kLn2Double = 0.6931471805599453;
  const auto k = static_cast<int>(std::floor(a_log * kInverseLn2));
  const double rest = a_log - k * kLn2Double;
  double term = 1;
  double sum = 1;
  for (int n = 1; n <= 20; ++n) {
    term = term * rest * (1.0 / n);
    sum += term;
  }
  const double power = std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
  return static_cast<float>(sum * power * kInverseLn2);
}

float softplus(float x) {
  const float distance = std::bit_cast<float>(magnitude_bits(x)) * kLog2e;
  uint64_t logarithm = 0;
  // Written so that what is not a number counts as large: it may not become an integer.
  if (distance < 32.0F) {
    const auto u = static_cast<uint64_t>(distance * 0x1p32F);
    logarithm = log_one_plus(exp2_fraction32(static_cast<uint32_t>(u)) >> (u >> 32));
  }
  const float positive = x > 0 ? x : 0.0F;
  return positive + static_cast<float>(logarithm) * 0x1p-30F;
}

float decay(float a, float dt_bias, float constant) {
  const float x = a + dt_bias;
  const float r = softplus(x) * constant;
  if (!(r < kMostDecay)) return 0;
  const auto u = static_cast<uint64_t>(r * 0x1p32F);
  const int whole = static_cast<int>(u >> 32);
  return static_cast<float>(exp2_fraction32(static_cast<uint32_t>(u))) * power_of_two(-32 - whole);
}

float convolve(const float* x, size_t stride, const float* weights, size_t weight_stride,
               uint32_t kernel) {
  float sum = weights[0] * x[0];
  for (uint32_t i = 1; i < kernel; ++i) {
    const float product = weights[i * weight_stride] * x[i * stride];
    sum = sum + product;
  }
  return sum * logistic_f32(sum);
}

bool unit_vector(std::span<const float> x, std::span<int16_t> scratch, std::span<float> y) {
  int exponent = 0;
  if (!quantize(x, scratch, exponent) || exponent > kMaxNormExponent) return false;
  int64_t squares = 0;
  for (const int16_t q : scratch) squares += int32_t{q} * int32_t{q};
  const float factor = norm_factor(static_cast<float>(squares), exponent, 1e-6F);
  for (size_t i = 0; i < x.size(); ++i) {
    const float scaled = (x[i] * factor) * power_of_two(kUnitBits);
    y[i] = std::nearbyintf(scaled) * power_of_two(-kUnitBits);
  }
  return true;
}

// The columns are the inner loop, so that compilers make vectors of it; nothing is added across
// them.
void delta_step(const float* from, float* to, uint32_t key_dim, const DeltaToken& token,
                const float* value, float* out) {
  Block sums[kStateSums] = {};
  for (uint32_t i = 0; i < key_dim; ++i) {
    const float* row = from + size_t{i} * kStateColumns;
    float* sum = sums[i % kStateSums];
    for (uint32_t j = 0; j < kStateColumns; ++j) {
      const float product = row[j] * token.key[i];
      sum[j] += product;
    }
  }
  Block delta;
  for (uint32_t j = 0; j < kStateColumns; ++j) {
    const float held = token.decay * ((sums[0][j] + sums[1][j]) + (sums[2][j] + sums[3][j]));
    const float missing = value[j] - held;
    delta[j] = state_value(missing * token.rate);
  }
  Block outs[kStateSums] = {};
  for (uint32_t i = 0; i < key_dim; ++i) {
    const float* row = from + size_t{i} * kStateColumns;
    float* next = to + size_t{i} * kStateColumns;
    float* sum = outs[i % kStateSums];
    const float query = token.query != nullptr ? token.query[i] : 0.0F;
    for (uint32_t j = 0; j < kStateColumns; ++j) {
      const float kept = row[j] * token.decay;
      const float added = token.key[i] * delta[j];
      next[j] = state_value(kept + added);
      const float product = next[j] * query;
      sum[j] += product;
    }
  }
  if (token.query == nullptr) return;
  for (uint32_t j = 0; j < kStateColumns; ++j) {
    out[j] = token.scale * ((outs[0][j] + outs[1][j]) + (outs[2][j] + outs[3][j]));
  }
}

}  // namespace tandem::arithmetic
