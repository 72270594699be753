// A mixture of experts on the CPU: choose, gather each expert's tokens, all experts' first products
// in one loop, the activation, all second products in one loop, weighted sums. Experts that have to
// be read go the same way later, as they come.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "arithmetic/activation.h"
#include "arithmetic/router.h"
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
  const Expert& one = step.experts.front();
  const uint32_t width = matrices_[one.gate.matrix.id].rows;
  const uint32_t columns = matrices_[one.down.matrix.id].rows;
  const uint64_t tokens = std::max(tokens_, groups_.capacity);
  const uint64_t slots = tokens * step.chosen;
  const auto rows = [&](ActivationRows& memory, uint32_t n, uint64_t count) {
    if (memory.columns == n && memory.exponents.size() >= count) return true;
    return make_rows(memory, n, count, kernels_.prepared_bytes(padded_columns(n)));
  };
  const auto floats = [](AlignedArray<float>& memory, uint64_t count) {
    return memory.size() >= count || make_floats(memory, count);
  };
  const auto products = [&](ExpertProducts& memory, const ExpertMatrix& matrix, uint64_t count) {
    return floats(memory.values, count) && (!matrix.rest || floats(memory.rest, count));
  };
  groups_.capacity = 0;
  // One token goes everywhere as it is.
  bool ok = tokens == 1 || rows(groups_.gathered, in.columns, slots);
  ok = ok && rows(groups_.inner, width, slots) && products(groups_.gate, one.gate, slots * width) &&
       products(groups_.up, one.up, slots * width) &&
       products(groups_.down, one.down, slots * columns);
  if (step.shared != nullptr) {
    const Expert& shared = *step.shared;
    const uint32_t own = matrices_[shared.gate.matrix.id].rows;
    ok = ok && rows(groups_.shared_inner, own, tokens) &&
         products(groups_.shared_gate, shared.gate, tokens * own) &&
         products(groups_.shared_up, shared.up, tokens * own) &&
         products(groups_.shared_down, shared.down, tokens * columns);
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
  std::vector<std::shared_ptr<OnDemand>> files;
  size_t kept = 0;
  for (const ExpertGroup& group : groups_.groups) {
    const Expert& expert = step.experts[group.expert];
    const std::shared_ptr<OnDemand>& mapped = matrices_[expert.gate.matrix.id].on_demand;
    std::array<uint32_t, 6> ids{};
    size_t count = 0;
    for (const ExpertMatrix* one : {&expert.gate, &expert.up, &expert.down}) {
      ids[count++] = one->matrix.id;
      if (one->rest) ids[count++] = one->rest->id;
    }
    if (mapped != nullptr && expert_memory_.use(std::span(ids).first(count), matrices_)) {
      late.push_back(group);
      files.push_back(mapped);
    } else {
      groups_.groups[kept++] = group;
    }
  }
  std::copy(late.begin(), late.end(), groups_.groups.begin() + static_cast<ptrdiff_t>(kept));
  expert_reader_.begin(files);
  return kept;
}

void CpuBackend::multiply(const ExpertMatrix& matrix, const ActivationView& in, ExpertProducts& out,
                          size_t first) {
  const PackedMatrix& packed = matrices_[matrix.matrix.id];
  const size_t columns = packed.rows;
  tasks_.push_back({&packed, in, bias(matrix), out.values.data() + first * columns, columns});
  if (!matrix.rest) return;
  tasks_.push_back(
      {&matrices_[matrix.rest->id], in, nullptr, out.rest.data() + first * columns, columns});
}

void CpuBackend::activate(const GatedActivation& activation, const Expert& expert,
                          ExpertProducts& gate, ExpertProducts& up, ActivationRows& inner) {
  const uint32_t n = inner.columns;
  const uint64_t fewest = (kElementsWorthForking + n - 1) / n;
  pool_.split(groups_.active.size(), fewest, [&](uint64_t begin, uint64_t end) {
    thread_local std::vector<float> memory;
    if (memory.size() < n) memory.resize(n);
    for (uint64_t i = begin; i < end; ++i) {
      const uint32_t slot = groups_.active[i];
      const size_t place = size_t{slot} * n;
      float* g = gate.values.data() + place;
      float* u = up.values.data() + place;
      if (expert.gate.rest) kernels_.add(g, gate.rest.data() + place, n);
      if (expert.up.rest) kernels_.add(u, up.rest.data() + place, n);
      if (activation.kind == GatedActivation::Kind::kClampedSwiglu) {
        kernels_.clamped_swiglu(g, u, n, activation.alpha, activation.limit, memory.data());
      } else {
        kernels_.gated_silu(g, u, n, memory.data());
      }
      quantize_row(memory.data(), inner, slot);
    }
  });
}

void CpuBackend::run_groups(const ActivationRows& in, const ExpertsStep& step,
                            std::span<const ExpertGroup> groups, bool with_shared) {
  const bool alone = tokens_ == 1;
  const size_t bytes = kernels_.prepared_bytes(in.padded);
  const size_t inner_bytes = kernels_.prepared_bytes(groups_.inner.padded);
  tasks_.clear();
  for (const ExpertGroup& group : groups) {
    const Expert& expert = step.experts[group.expert];
    const ActivationView view =
        alone ? ActivationView(in)
              : ActivationView(groups_.gathered, group.first, group.count, bytes);
    multiply(expert.gate, view, groups_.gate, group.first);
    multiply(expert.up, view, groups_.up, group.first);
  }
  if (with_shared) {
    multiply(step.shared->gate, in, groups_.shared_gate, 0);
    multiply(step.shared->up, in, groups_.shared_up, 0);
  }
  run(tasks_, !alone);
  groups_.active.clear();
  for (const ExpertGroup& group : groups) {
    for (uint32_t i = 0; i < group.count; ++i) groups_.active.push_back(group.first + i);
  }
  activate(step.activation, step.experts.front(), groups_.gate, groups_.up, groups_.inner);
  if (with_shared) {
    groups_.active.resize(tokens_);
    std::iota(groups_.active.begin(), groups_.active.end(), 0U);
    groups_.shared_inner.tokens = tokens_;
    activate(step.activation, *step.shared, groups_.shared_gate, groups_.shared_up,
             groups_.shared_inner);
  }
  tasks_.clear();
  for (const ExpertGroup& group : groups) {
    multiply(step.experts[group.expert].down,
             ActivationView(groups_.inner, group.first, group.count, inner_bytes), groups_.down,
             group.first);
  }
  if (with_shared) multiply(step.shared->down, groups_.shared_inner, groups_.shared_down, 0);
  run(tasks_, !alone);
}

void CpuBackend::run_late_groups(const ActivationRows& in, const ExpertsStep& step, size_t first) {
  std::vector<ExpertGroup> groups;
  while (true) {
    const std::vector<ExpertReader::Arrival> arrived = expert_reader_.wait();
    if (arrived.empty()) return;
    groups.clear();
    for (const ExpertReader::Arrival& one : arrived) {
      if (one.status.ok()) {
        groups.push_back(groups_.groups[first + one.place]);
      } else {
        unreadable_ = one.status;
      }
    }
    if (!groups.empty()) run_groups(in, step, groups, false);
  }
}

void CpuBackend::experts(Activations in, Floats logits, const ExpertsStep& step, Floats out) {
  const ActivationRows& rows = activations_[in.id];
  FloatRows& result = floats_[out.id];
  if (!unreadable_.ok()) return;  // and so will finish()
  choose(logits, step);
  if (!grow_experts(rows, step)) {
    exhausted_.store(true, std::memory_order_relaxed);
    return;
  }
  gather(rows);
  groups_.inner.tokens = tokens_ * step.chosen;
  // What is in memory already is computed with while the rest is read, and each of the rest as soon
  // as it is there.
  const size_t ready = want_experts(step);
  if (ready != 0 || step.shared != nullptr) {
    run_groups(rows, step, std::span(groups_.groups).first(ready), step.shared != nullptr);
  }
  run_late_groups(rows, step, ready);
  if (!unreadable_.ok()) return;
  add_up(step, result);
}

void CpuBackend::add_up(const ExpertsStep& step, FloatRows& out) {
  const uint32_t parts = step.chosen + (step.shared != nullptr ? 1 : 0);
  const size_t columns = out.columns;
  const auto row = [&](ExpertProducts& products, const ExpertMatrix& matrix, size_t index) {
    float* values = products.values.data() + index * columns;
    if (matrix.rest) kernels_.add(values, products.rest.data() + index * columns, columns);
    return values;
  };
  each_token(out.columns * parts, [&](uint32_t t) {
    thread_local std::vector<const float*> parts_of;
    parts_of.resize(parts);
    for (uint32_t r = 0; r < step.chosen; ++r) {
      const size_t slot = groups_.slots[size_t{t} * step.chosen + r];
      parts_of[r] = row(groups_.down, step.experts.front().down, slot);
    }
    if (step.shared != nullptr)
      parts_of[step.chosen] = row(groups_.shared_down, step.shared->down, t);
    kernels_.weighted_sum(parts_of.data(), &groups_.weights[size_t{t} * (step.chosen + 1)], parts,
                          columns, out.row(t));
  });
}

}  // namespace tandem::kernels::cpu
