// Gated delta nets with AVX-512: a block's 16 columns are one vector. The operations of
// arithmetic/delta_rule in their order; no fused multiply-add anywhere.
#include "arithmetic/delta_rule.h"
#include "kernels/cpu/avx512_vector.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {
namespace {

namespace a = arithmetic;

static_assert(a::kStateColumns == 16 && a::kStateSums == 4);

TANDEM_AVX512 inline __m512 state_value(__m512 x) {
  const auto bits = static_cast<int>(a::kStateBits);
  return _mm512_maskz_mov_ps(
      _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(bits)), x);
}

TANDEM_AVX512 inline __m512 joined(const __m512 (&sums)[4]) {
  return _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
}

// A row of the block: the new state, and what it adds to the output. A row is a cache line: where
// it is not read again soon it goes to memory past the caches, which saves reading it there first.
template <bool kOutput, bool kStream>
TANDEM_AVX512 inline void row(const float* from, float* to, float key, const float* query,
                              __m512 decay, __m512 delta, __m512& sum) {
  const __m512 kept = _mm512_mul_ps(_mm512_loadu_ps(from), decay);
  const __m512 added = _mm512_mul_ps(_mm512_set1_ps(key), delta);
  const __m512 next = state_value(_mm512_add_ps(kept, added));
  if constexpr (kStream) {
    _mm512_stream_ps(to, next);
  } else {
    _mm512_storeu_ps(to, next);
  }
  if constexpr (kOutput) {
    sum = _mm512_add_ps(sum, _mm512_mul_ps(next, _mm512_set1_ps(*query)));
  }
}

template <bool kOutput, bool kStream>
TANDEM_AVX512 void steps(const DeltaTask& task) {
  const float* from = task.from;
  for (uint32_t t = 0; t < task.tokens; ++t) {
    const float* key = task.keys + t * task.key_stride;
    const float* query = kOutput ? task.queries + t * task.query_stride : nullptr;
    const __m512 decay = _mm512_set1_ps(task.gates[t * task.gate_stride]);
    const __m512 rate = _mm512_set1_ps(task.gates[t * task.gate_stride + 1]);
    __m512 held[4] = {};
    for (uint32_t i = 0; i < task.key_dim; i += 4) {
      const float* rows = from + size_t{i} * 16;
      for (uint32_t p = 0; p < 4; ++p) {
        held[p] = _mm512_add_ps(
            held[p], _mm512_mul_ps(_mm512_loadu_ps(rows + p * 16), _mm512_set1_ps(key[i + p])));
      }
    }
    const __m512 value = _mm512_loadu_ps(task.values + t * task.value_stride);
    const __m512 missing = _mm512_sub_ps(value, _mm512_mul_ps(decay, joined(held)));
    const __m512 delta = state_value(_mm512_mul_ps(missing, rate));
    __m512 outs[4] = {};
    for (uint32_t i = 0; i < task.key_dim; i += 4) {
      for (uint32_t p = 0; p < 4; ++p) {
        const size_t at = size_t{i + p} * 16;
        row<kOutput, kStream>(from + at, task.to + at, key[i + p],
                              kOutput ? query + i + p : nullptr, decay, delta, outs[p]);
      }
    }
    if constexpr (kOutput) {
      _mm512_storeu_ps(task.out + t * task.out_stride,
                       _mm512_mul_ps(_mm512_set1_ps(task.scale), joined(outs)));
    }
    from = task.to;
  }
  if constexpr (kStream) _mm_sfence();
}

}  // namespace

void delta(const DeltaTask& task) {
  const bool aligned = reinterpret_cast<uintptr_t>(task.to) % 64 == 0;
  if (task.queries == nullptr) {
    steps<false, false>(task);
  } else if (task.tokens == 1 && task.from != task.to && aligned) {
    steps<true, true>(task);
  } else {
    steps<true, false>(task);
  }
}

}  // namespace tandem::kernels::cpu::avx512

#endif
