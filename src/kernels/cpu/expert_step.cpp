// A mixture of experts on the CPU: choose, gather each expert's tokens, all experts' first products
// in one loop, the activation, all second products in one loop, weighted sums.
#include <algorithm>
#include <array>
#include <cstring>

#include "arithmetic/activation.h"
#include "arithmetic/router.h"
#include "base/mutex.h"
#include "kernels/cpu/cpu_backend.h"

namespace tandem::kernels::cpu {
namespace {

// Rows of activations, or nothing to grow: false if memory is exhausted.
bool make_rows(ActivationRows& rows, uint32_t columns, uint64_t count, size_t prepared_bytes) {
  rows = ActivationRows();
  rows.columns = columns;
  rows.padded = padded_columns(columns);
  rows.tokens = static_cast<uint32_t>(count);
  rows.values = AlignedArray<int16_t>(count * rows.padded);
  rows.prepared = AlignedArray<uint8_t>(count * prepared_bytes);
  rows.exponents.assign(count, 0);
  rows.sums.assign(count, 0);
  return rows.values.size() != 0 && rows.prepared.size() == count * prepared_bytes;
}

bool make_floats(AlignedArray<float>& floats, uint64_t count) {
  floats = AlignedArray<float>();
  floats = AlignedArray<float>(count);
  return floats.size() == count;
}

}  // namespace

void ExpertGroups::arrange(uint32_t count, uint32_t expert_count) {
  const size_t all = size_t{count} * chosen;
  starts.assign(expert_count + 1, 0);
  for (size_t i = 0; i < all; ++i) ++starts[experts[i] + 1];
  groups.clear();
  for (uint32_t e = 0; e < expert_count; ++e) {
    const uint32_t first = starts[e];
    const uint32_t own = starts[e + 1];
    if (own != 0) groups.push_back({e, first, own});
    starts[e + 1] = first + own;
  }
  tokens.resize(all);
  slots.resize(all);
  for (uint32_t t = 0; t < count; ++t) {
    for (uint32_t r = 0; r < chosen; ++r) {
      const size_t i = size_t{t} * chosen + r;
      const uint32_t slot = starts[experts[i]]++;
      slots[i] = slot;
      tokens[slot] = t;
    }
  }
}

void CpuBackend::choose(Floats logits, const ExpertsStep& step) {
  FloatRows& rows = floats_[logits.id];
  const auto count = static_cast<uint32_t>(step.experts.size());
  groups_.chosen = step.chosen;
  groups_.experts.resize(size_t{tokens_} * step.chosen);
  groups_.weights.resize(size_t{tokens_} * (step.chosen + 1));
  each_token(count * step.chosen, [&](uint32_t t) {
    uint32_t* experts = &groups_.experts[size_t{t} * step.chosen];
    float* weights = &groups_.weights[size_t{t} * (step.chosen + 1)];
    const float* own = rows.row(t);
    if (!arithmetic::route({own, count}, step.normalize, {experts, step.chosen},
                           {weights, step.chosen})) {
      fail();
    }
    if (step.shared != nullptr) weights[step.chosen] = arithmetic::logistic_f32(own[count]);
  });
  groups_.arrange(tokens_, count);
}

bool CpuBackend::grow_experts(const ActivationRows& in, const ExpertsStep& step) {
  const PackedMatrix& first = matrices_[step.experts.front().gate.matrix.id];
  const PackedMatrix& second = matrices_[step.experts.front().down.matrix.id];
  const uint64_t tokens = std::max(tokens_, groups_.capacity);
  const uint64_t slots = tokens * step.chosen;
  const auto rows = [&](ActivationRows& memory, uint32_t columns, uint64_t count) {
    if (memory.columns == columns && memory.exponents.size() >= count) return true;
    return make_rows(memory, columns, count, kernels_.prepared_bytes(padded_columns(columns)));
  };
  const auto floats = [](AlignedArray<float>& memory, uint64_t count) {
    return memory.size() >= count || make_floats(memory, count);
  };
  groups_.capacity = 0;
  // One token goes everywhere as it is.
  bool ok = tokens == 1 || rows(groups_.gathered, in.columns, slots);
  ok = ok && rows(groups_.inner, first.rows, slots) && floats(groups_.gate, slots * first.rows) &&
       floats(groups_.up, slots * first.rows) && floats(groups_.down, slots * second.rows);
  if (step.shared != nullptr) {
    const PackedMatrix& shared = matrices_[step.shared->gate.matrix.id];
    ok = ok && rows(groups_.shared_inner, shared.rows, tokens) &&
         floats(groups_.shared_gate, tokens * shared.rows) &&
         floats(groups_.shared_up, tokens * shared.rows) &&
         floats(groups_.shared_down, tokens * second.rows);
  }
  if (ok) groups_.capacity = static_cast<uint32_t>(tokens);
  return ok;
}

void CpuBackend::gather(const ActivationRows& in) {
  if (tokens_ == 1) return;
  ActivationRows& out = groups_.gathered;
  const size_t bytes = kernels_.prepared_bytes(in.padded);
  const uint64_t fewest = (kElementsWorthForking + in.padded - 1) / std::max(in.padded, 1U);
  pool_.split(groups_.tokens.size(), fewest, [&](uint64_t begin, uint64_t end) {
    for (uint64_t slot = begin; slot < end; ++slot) {
      const uint32_t t = groups_.tokens[slot];
      std::memcpy(out.values.data() + slot * in.padded, in.values.data() + size_t{t} * in.padded,
                  size_t{in.padded} * sizeof(int16_t));
      if (bytes != 0) {
        std::memcpy(out.prepared.data() + slot * bytes, in.prepared.data() + t * bytes, bytes);
      }
      out.exponents[slot] = in.exponents[t];
      out.sums[slot] = in.sums[t];
    }
  });
}

size_t CpuBackend::want_experts(const ExpertsStep& step) {
  std::vector<ExpertGroup> late;
  size_t kept = 0;
  for (const ExpertGroup& group : groups_.groups) {
    const Expert& expert = step.experts[group.expert];
    const std::shared_ptr<OnDemand>& mapped = matrices_[expert.gate.matrix.id].on_demand;
    const std::array<uint32_t, 3> ids = {expert.gate.matrix.id, expert.up.matrix.id,
                                         expert.down.matrix.id};
    if (mapped != nullptr && expert_memory_.use(ids, matrices_)) {
      mapped->want();
      late.push_back(group);
    } else {
      groups_.groups[kept++] = group;
    }
  }
  std::copy(late.begin(), late.end(), groups_.groups.begin() + static_cast<ptrdiff_t>(kept));
  return kept;
}

void CpuBackend::fetch_experts(const ExpertsStep& step, size_t first) {
  Mutex mutex;
  pool_.split(groups_.groups.size() - first, 1, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const Expert& expert = step.experts[groups_.groups[first + i].expert];
      const Status status = matrices_[expert.gate.matrix.id].on_demand->fetch();
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      unreadable_ = status;
    }
  });
}

void CpuBackend::first_products(const ActivationRows& in, const ExpertsStep& step, size_t from,
                                size_t to) {
  tasks_.clear();
  const size_t bytes = kernels_.prepared_bytes(in.padded);
  const size_t stride = groups_.inner.columns;
  for (size_t i = from; i < to; ++i) {
    const ExpertGroup& group = groups_.groups[i];
    const Expert& expert = step.experts[group.expert];
    const ActivationView view =
        tokens_ == 1 ? ActivationView(in)
                     : ActivationView(groups_.gathered, group.first, group.count, bytes);
    const size_t place = group.first * stride;
    tasks_.push_back({&matrices_[expert.gate.matrix.id], view, bias(expert.gate),
                      groups_.gate.data() + place, stride});
    tasks_.push_back({&matrices_[expert.up.matrix.id], view, bias(expert.up),
                      groups_.up.data() + place, stride});
  }
  if (step.shared != nullptr && from == 0) shared_first(in, *step.shared);
  run(tasks_, tokens_ > 1);
}

void CpuBackend::shared_first(const ActivationRows& in, const Expert& shared) {
  const size_t width = groups_.shared_inner.columns;
  tasks_.push_back({&matrices_[shared.gate.matrix.id], in, bias(shared.gate),
                    groups_.shared_gate.data(), width});
  tasks_.push_back(
      {&matrices_[shared.up.matrix.id], in, bias(shared.up), groups_.shared_up.data(), width});
}

void CpuBackend::activate(const GatedActivation& activation, const float* gate, const float* up,
                          ActivationRows& inner, uint32_t count) {
  const uint32_t n = inner.columns;
  inner.tokens = count;
  pool_.split(count, (kElementsWorthForking + n - 1) / n, [&](uint64_t begin, uint64_t end) {
    thread_local std::vector<float> memory;
    if (memory.size() < n) memory.resize(n);
    for (uint64_t slot = begin; slot < end; ++slot) {
      const float* g = gate + slot * n;
      const float* u = up + slot * n;
      if (activation.kind == GatedActivation::Kind::kClampedSwiglu) {
        kernels_.clamped_swiglu(g, u, n, activation.alpha, activation.limit, memory.data());
      } else {
        kernels_.gated_silu(g, u, n, memory.data());
      }
      quantize_row(memory.data(), inner, static_cast<uint32_t>(slot));
    }
  });
}

void CpuBackend::second_products(const ExpertsStep& step, uint32_t columns) {
  tasks_.clear();
  const size_t bytes = kernels_.prepared_bytes(groups_.inner.padded);
  for (const ExpertGroup& group : groups_.groups) {
    const ExpertMatrix& matrix = step.experts[group.expert].down;
    tasks_.push_back({&matrices_[matrix.matrix.id],
                      ActivationView(groups_.inner, group.first, group.count, bytes), bias(matrix),
                      groups_.down.data() + size_t{group.first} * columns, columns});
  }
  if (step.shared != nullptr) {
    tasks_.push_back({&matrices_[step.shared->down.matrix.id], groups_.shared_inner,
                      bias(step.shared->down), groups_.shared_down.data(), columns});
  }
  run(tasks_, tokens_ > 1);
}

void CpuBackend::experts(Activations in, Floats logits, const ExpertsStep& step, Floats out) {
  const ActivationRows& rows = activations_[in.id];
  FloatRows& result = floats_[out.id];
  choose(logits, step);
  if (!grow_experts(rows, step)) {
    exhausted_.store(true, std::memory_order_relaxed);
    return;
  }
  gather(rows);
  // What is in memory already is computed with while the rest is read.
  const size_t ready = want_experts(step);
  first_products(rows, step, 0, ready);
  if (ready < groups_.groups.size()) {
    fetch_experts(step, ready);
    first_products(rows, step, ready, groups_.groups.size());
  }
  activate(step.activation, groups_.gate.data(), groups_.up.data(), groups_.inner,
           tokens_ * step.chosen);
  if (step.shared != nullptr) {
    activate(step.activation, groups_.shared_gate.data(), groups_.shared_up.data(),
             groups_.shared_inner, tokens_);
  }
  second_products(step, result.columns);
  const uint32_t parts = step.chosen + (step.shared != nullptr ? 1 : 0);
  each_token(result.columns * parts, [&](uint32_t t) {
    thread_local std::vector<const float*> parts_of;
    parts_of.resize(parts);
    for (uint32_t r = 0; r < step.chosen; ++r) {
      const size_t slot = groups_.slots[size_t{t} * step.chosen + r];
      parts_of[r] = groups_.down.data() + slot * result.columns;
    }
    if (step.shared != nullptr) {
      parts_of[step.chosen] = groups_.shared_down.data() + size_t{t} * result.columns;
    }
    kernels_.weighted_sum(parts_of.data(), &groups_.weights[size_t{t} * (step.chosen + 1)], parts,
                          result.columns, result.row(t));
  });
}

}  // namespace tandem::kernels::cpu
