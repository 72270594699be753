// The reference kernels of gated delta nets: plain calls of the contract's definitions.
#include "arithmetic/delta_rule.h"

#include "arithmetic/activation.h"
#include "kernels/cpu/cpu_kernels.h"

namespace tandem::kernels::cpu {

namespace a = arithmetic;

void plain_delta(const DeltaTask& task) {
  const float* from = task.from;
  for (uint32_t t = 0; t < task.tokens; ++t) {
    a::DeltaToken token;
    token.key = task.keys + t * task.key_stride;
    if (task.queries != nullptr) token.query = task.queries + t * task.query_stride;
    token.decay = task.gates[t * task.gate_stride];
    token.rate = task.gates[t * task.gate_stride + 1];
    token.scale = task.scale;
    a::delta_step(from, task.to, task.key_dim, token, task.values + t * task.value_stride,
                  task.queries != nullptr ? task.out + t * task.out_stride : nullptr);
    from = task.to;
  }
}

void plain_convolve(const float* rows, size_t stride, const float* weights, uint32_t kernel,
                    size_t n, float* out) {
  for (size_t c = 0; c < n; ++c) out[c] = a::convolve(rows + c, stride, weights + c, n, kernel);
}

bool plain_unit_vector(const float* x, size_t n, int16_t* scratch, float* y) {
  return a::unit_vector({x, n}, {scratch, n}, {y, n});
}

void plain_gate(const float* gate, size_t n, float* x) {
  for (size_t i = 0; i < n; ++i) x[i] = x[i] * a::logistic_f32(gate[i]);
}

}  // namespace tandem::kernels::cpu
