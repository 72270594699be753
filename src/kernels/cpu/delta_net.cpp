// The CPU backend's steps of gated delta nets.
#include <algorithm>
#include <vector>

#include "arithmetic/activation.h"
#include "arithmetic/delta_rule.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/recurrent_state.h"

namespace tandem::kernels::cpu {
namespace {

namespace a = arithmetic;

// Memory that a thread reuses from step to step.
struct Scratch {
  std::vector<float> floats;
  std::vector<int16_t> shorts;
  void grow(size_t n) {
    if (floats.size() < n) {
      floats.resize(n);
      shorts.resize(n);
    }
  }
};

Scratch& scratch() {
  thread_local Scratch memory;
  return memory;
}

// A thread's least share of tokens: fewer values than these are done before another has woken up.
uint64_t fewest_tokens(uint32_t columns) {
  constexpr uint32_t kValuesWorthForking = 8192;
  return (kValuesWorthForking + columns - 1) / std::max(columns, 1U);
}

}  // namespace

std::unique_ptr<RecurrentState> CpuBackend::new_recurrent(uint32_t layers,
                                                          const DeltaShape& shape) {
  return std::make_unique<CpuRecurrentState>(layers, shape, kernels_, pool_);
}

void CpuBackend::delta_net(const DeltaStep& step, RecurrentState& state, Floats out) {
  auto& own = static_cast<CpuRecurrentState&>(state);
  // The last group has as many tokens as can be rolled back.
  uint32_t count = (tokens_ - 1) % kRollbackWindow + 1;
  for (uint32_t first = 0; first < tokens_; first += count, count = kRollbackWindow) {
    delta_group(step, own, first, count, out);
  }
}

void CpuBackend::delta_group(const DeltaStep& step, CpuRecurrentState& state, uint32_t first,
                             uint32_t count, Floats out) {
  const DeltaShape& shape = state.shape();
  const uint32_t columns = shape.columns();
  const uint32_t keys = shape.keys();
  const uint32_t values = shape.values();
  FloatRows& mixed = floats_[step.mixed.id];
  const CpuRecurrentState::Group group = state.begin_group(step.layer);
  float* rows = group.mixed + size_t{shape.kernel - 1} * columns;
  pool_.split(count, fewest_tokens(columns), [&](uint64_t begin, uint64_t end) {
    const float* from = mixed.row(first);
    for (uint64_t i = begin * columns; i < end * columns; ++i) rows[i] = a::state_value(from[i]);
  });
  const float* weights = vectors_[step.convolution.id].data();
  pool_.split(count, fewest_tokens(columns), [&](uint64_t begin, uint64_t end) {
    Scratch& memory = scratch();
    memory.grow(columns);
    float* convolved = memory.floats.data();
    for (uint64_t t = begin; t < end; ++t) {
      kernels_.convolve(group.mixed + t * columns, columns, weights, shape.kernel, columns,
                        convolved);
      float* queries = group.queries + t * keys;
      float* brought = group.tokens + t * (size_t{keys} + values);
      bool finite = true;
      for (uint32_t c = 0; c < keys; c += shape.key_dim) {
        finite &=
            kernels_.unit_vector(convolved + c, shape.key_dim, memory.shorts.data(), queries + c);
        finite &= kernels_.unit_vector(convolved + keys + c, shape.key_dim, memory.shorts.data(),
                                       brought + c);
      }
      std::copy_n(convolved + 2 * size_t{keys}, values, brought + keys);
      finite &=
          gates(step, static_cast<uint32_t>(first + t), group.gates + t * shape.value_heads * 2);
      if (!finite) fail();
    }
  });
  state.run_group(step.layer, count, group.queries, step.scale, floats_[out.id].row(first));
}

bool CpuBackend::gates(const DeltaStep& step, uint32_t token, float* out) {
  const float* decays = floats_[step.decay.id].row(token);
  const float* rates = floats_[step.rate.id].row(token);
  const std::vector<float>& constants = vectors_[step.constants.id];
  const std::vector<float>& bias = vectors_[step.bias.id];
  bool finite = true;
  for (size_t h = 0; h < constants.size(); ++h) {
    finite = finite && a::magnitude_bits(decays[h]) < a::kInfinityBits &&
             a::magnitude_bits(rates[h]) < a::kInfinityBits;
    out[2 * h] = a::decay(decays[h], bias[h], constants[h]);
    out[2 * h + 1] = a::logistic_f32(rates[h]);
  }
  return finite;
}

void CpuBackend::gated_norm(Floats in, const Norm& norm, Floats gate, Activations out) {
  FloatRows& rows = floats_[in.id];
  FloatRows& gates = floats_[gate.id];
  ActivationRows& result = activations_[out.id];
  const uint32_t head = norm.constants.n;
  pool_.split(tokens_, fewest_tokens(rows.columns), [&](uint64_t begin, uint64_t end) {
    Scratch& memory = scratch();
    memory.grow(rows.columns);
    float* normed = memory.floats.data();
    for (uint64_t i = begin; i < end; ++i) {
      const auto t = static_cast<uint32_t>(i);
      for (uint32_t c = 0; c < rows.columns; c += head) {
        if (!apply(norm, rows.row(t) + c, memory.shorts.data(), normed + c)) fail();
      }
      kernels_.gated_silu(gates.row(t), normed, rows.columns, normed);
      quantize_row(normed, result, t);
    }
  });
}

}  // namespace tandem::kernels::cpu
