// Gated delta nets with AVX2: a block's 16 columns are two vectors. The operations of
// arithmetic/delta_rule in their order; no fused multiply-add anywhere.
#include "arithmetic/delta_rule.h"
#include "kernels/cpu/avx2_vector.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

namespace a = arithmetic;

static_assert(a::kStateColumns == 16 && a::kStateSums == 4);

// Not below 2^-63 in magnitude, or not a number: what is kept.
TANDEM_AVX2 inline __m256 state_value(__m256 x) {
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x);
  return _mm256_and_ps(x, _mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-63F), _CMP_NLT_UQ));
}

TANDEM_AVX2 inline __m256 joined(const __m256 (&sums)[4]) {
  return _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
}

template <bool kOutput>
TANDEM_AVX2 inline void row(const float* from, float* to, __m256 key, const float* query,
                            __m256 decay, __m256 delta, __m256& sum) {
  const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(from), decay);
  const __m256 next = state_value(_mm256_add_ps(kept, _mm256_mul_ps(key, delta)));
  _mm256_storeu_ps(to, next);
  if constexpr (kOutput) {
    sum = _mm256_add_ps(sum, _mm256_mul_ps(next, _mm256_broadcast_ss(query)));
  }
}

// Half a block: eight columns. Both halves of a token are done before the next token's, so that a
// block in place is never read after it was written.
template <bool kOutput>
TANDEM_AVX2 void half_step(const DeltaTask& task, const float* from, uint32_t t, uint32_t half) {
  const float* key = task.keys + t * task.key_stride;
  const float* query = kOutput ? task.queries + t * task.query_stride : nullptr;
  const __m256 decay = _mm256_set1_ps(task.gates[t * task.gate_stride]);
  const __m256 rate = _mm256_set1_ps(task.gates[t * task.gate_stride + 1]);
  from += half;
  float* to = task.to + half;
  __m256 held[4] = {};
  for (uint32_t i = 0; i < task.key_dim; i += 4) {
    const float* rows = from + size_t{i} * 16;
    for (uint32_t p = 0; p < 4; ++p) {
      held[p] = _mm256_add_ps(
          held[p], _mm256_mul_ps(_mm256_loadu_ps(rows + p * 16), _mm256_broadcast_ss(key + i + p)));
    }
  }
  const __m256 value = _mm256_loadu_ps(task.values + t * task.value_stride + half);
  const __m256 missing = _mm256_sub_ps(value, _mm256_mul_ps(decay, joined(held)));
  const __m256 delta = state_value(_mm256_mul_ps(missing, rate));
  __m256 outs[4] = {};
  for (uint32_t i = 0; i < task.key_dim; i += 4) {
    for (uint32_t p = 0; p < 4; ++p) {
      const size_t at = size_t{i + p} * 16;
      row<kOutput>(from + at, to + at, _mm256_broadcast_ss(key + i + p),
                   kOutput ? query + i + p : nullptr, decay, delta, outs[p]);
    }
  }
  if constexpr (kOutput) {
    _mm256_storeu_ps(task.out + t * task.out_stride + half,
                     _mm256_mul_ps(_mm256_set1_ps(task.scale), joined(outs)));
  }
}

template <bool kOutput>
TANDEM_AVX2 void steps(const DeltaTask& task) {
  const float* from = task.from;
  for (uint32_t t = 0; t < task.tokens; ++t) {
    half_step<kOutput>(task, from, t, 0);
    half_step<kOutput>(task, from, t, 8);
    from = task.to;
  }
}

}  // namespace

void delta(const DeltaTask& task) {
  if (task.queries != nullptr) {
    steps<true>(task);
  } else {
    steps<false>(task);
  }
}

}  // namespace tandem::kernels::cpu::avx2

#endif
