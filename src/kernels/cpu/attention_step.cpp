// Queries, keys, values, and attention over them.
//
// In a pass of one token the heads are not prepared when a step asks for it, but with the attention
// of the key and value head that they belong to: by the thread that then reads them, while others
// do the same for other heads.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace tandem::kernels::cpu {
namespace {

// Memory that a thread reuses from step to step.
struct Scratch {
  std::vector<float> floats;
  std::vector<float> ordered;
  std::vector<int16_t> shorts;
  std::vector<int16_t> values;
  std::vector<int32_t> integers;
  AttentionScratch attention;
  void grow(size_t n) {
    if (floats.size() < n) {
      floats.resize(n);
      ordered.resize(n);
      shorts.resize(n);
      values.resize(n);
      integers.resize(n);
    }
  }
};

Scratch& scratch() {
  thread_local Scratch memory;
  return memory;
}

// A partly rotated head in the order that kernels::Rotary describes.
void order_for_rotation(const float* x, uint32_t head_dim, const Rotary& rotary, float* out) {
  const uint32_t pairs = rotary.channels / 2;
  const uint32_t rest = head_dim / 2 - pairs;
  for (uint32_t half = 0; half < 2; ++half) {
    const float* own = x + rotary.channels + size_t{half} * rest;
    float* to = std::copy_n(x + size_t{half} * pairs, pairs, out + size_t{half} * (head_dim / 2));
    for (uint32_t i = 0; i < rest; ++i) to[i] = own[i] * rotary.rest;
  }
}

}  // namespace

bool CpuBackend::head(const float* x, uint32_t head_dim, const Norm* norm, const Rotary& rotary,
                      uint32_t token, int16_t* values, int32_t* exponent) {
  Scratch& memory = scratch();
  memory.grow(head_dim);
  bool finite = true;
  if (norm != nullptr) {
    finite = apply(*norm, x, memory.shorts.data(), memory.floats.data());
    x = memory.floats.data();
  }
  if (rotary.enabled && rotary.channels != 0 && rotary.channels != head_dim) {
    order_for_rotation(x, head_dim, rotary, memory.ordered.data());
    x = memory.ordered.data();
  }
  finite = kernels_.quantize(x, head_dim, values, exponent) && finite;
  if (rotary.enabled) {
    *exponent = kernels_.rotate(values, head_dim, *exponent,
                                rotations_[rotary.table].data() + size_t{token} * (head_dim / 2),
                                memory.integers.data());
  }
  return finite;
}

void CpuBackend::prepare(const HeadStep& step, uint32_t token, uint32_t first, uint32_t end) {
  const float* row = floats_[step.in.id].row(token);
  const Norm* norm = step.norm.has_value() ? &*step.norm : nullptr;
  for (uint32_t h = first; h < end; ++h) {
    const float* x = row + h * step.stride;
    if (step.cache == nullptr) {
      HeadRows& out = heads_[step.out.id];
      const size_t slot = size_t{token} * out.heads + h;
      if (!head(x, step.head_dim, norm, step.rotary, token,
                out.values.data() + slot * out.padded_dim, &out.exponents[slot])) {
        fail();
      }
      continue;
    }
    Scratch& memory = scratch();
    memory.grow(step.head_dim);
    int32_t exponent = 0;
    if (!head(x, step.head_dim, norm, step.rotary, token, memory.values.data(), &exponent)) fail();
    (step.cache->*step.store)(step.layer, h, step.position + token, memory.values.data(), exponent);
  }
}

void CpuBackend::prepare_waiting() {
  for (const HeadStep& step : waiting_) prepare(step, 0, 0, step.heads);
  waiting_.clear();
}

void CpuBackend::add(const HeadStep& step) {
  if (tokens_ == 1) {
    waiting_.push_back(step);
    return;
  }
  each_token(floats_[step.in.id].columns,
             [&](uint32_t token) { prepare(step, token, 0, step.heads); });
}

void CpuBackend::queries(Floats in, const Norm* norm, const Rotary& rotary, Heads out) {
  HeadStep step;
  step.in = in;
  if (norm != nullptr) step.norm = *norm;
  step.rotary = rotary;
  step.out = out;
  step.heads = heads_[out.id].heads;
  step.head_dim = heads_[out.id].head_dim;
  step.stride = floats_[in.id].columns / step.heads;
  add(step);
}

void CpuBackend::store_heads(Floats in, const Norm* norm, const Rotary& rotary, KvCache& cache,
                             uint32_t layer, uint32_t position, StoreHead store) {
  HeadStep step;
  step.in = in;
  if (norm != nullptr) step.norm = *norm;
  step.rotary = rotary;
  step.cache = &static_cast<CpuKvCache&>(cache);
  step.layer = layer;
  step.position = position;
  step.store = store;
  step.heads = step.cache->kv_heads();
  step.head_dim = step.cache->view(layer, 0).head_dim;
  step.stride = step.head_dim;
  add(step);
}

void CpuBackend::keys(Floats in, const Norm* norm, const Rotary& rotary, KvCache& cache,
                      uint32_t layer, uint32_t position) {
  store_heads(in, norm, rotary, cache, layer, position, &CpuKvCache::store_key);
}

void CpuBackend::values(Floats in, KvCache& cache, uint32_t layer, uint32_t position) {
  store_heads(in, nullptr, {}, cache, layer, position, &CpuKvCache::store_value);
}

void CpuBackend::attention(Heads queries, const KvCache& cache, const AttentionStep& step,
                           Activations out) {
  const auto& kv_cache = static_cast<const CpuKvCache&>(cache);
  HeadRows& q = heads_[queries.id];
  ActivationRows& result = activations_[out.id];
  const uint32_t kv_heads = kv_cache.kv_heads();
  const uint32_t group = q.heads / kv_heads;
  std::vector<int32_t> sinks;
  if (step.sinks.has_value()) {
    for (const float logit : vectors_[step.sinks->id]) {
      sinks.push_back(arithmetic::sink_score(logit));
    }
  }
  // A task is some tokens of some heads that share a kv head: as many as profit from reading the
  // cache together, and so few that a thread's scores stay within 18 MB.
  constexpr uint32_t kMostRows = 16;
  const auto parts = [](uint32_t count, uint32_t each) { return (count + each - 1) / each; };
  const uint32_t heads = std::min(group, kMostRows);
  const uint32_t head_parts = parts(group, heads);
  uint32_t tokens = std::clamp(kMostRows / heads, 1U, tokens_);
  const auto tasks = [&] { return kv_heads * parts(tokens_, tokens) * head_parts; };
  // Threads share a task's positions where tasks alone would leave some idle and the joins between
  // steps take less than what they save.
  constexpr uint32_t kPositionsWorthSplitting = 1024;
  uint32_t seen = step.position + tokens_;
  if (step.window != 0) seen = std::min(seen, step.window + tokens_);
  const uint32_t threads = pool_.threads();
  const bool uneven = tasks() < 4 * threads && tasks() % threads != 0;
  const bool together = threads > 1 && uneven && seen >= kPositionsWorthSplitting;
  while (!together && tasks() < 2 * threads && tokens > 1) tokens = (tokens + 1) / 2;
  const uint32_t token_parts = parts(tokens_, tokens);
  const bool fused = !together && head_parts == 1 &&
                     std::all_of(waiting_.begin(), waiting_.end(), [&](const HeadStep& waiting) {
                       return waiting.heads == (waiting.cache == nullptr ? q.heads : kv_heads);
                     });
  if (!fused) prepare_waiting();
  const auto run = [&](uint32_t i, ThreadPool* pool) {
    const uint32_t kv_head = i / (token_parts * head_parts);
    for (const HeadStep& waiting : waiting_) {
      if (waiting.cache != nullptr) waiting.cache->touch(waiting.layer, kv_head, waiting.position);
    }
    for (const HeadStep& waiting : waiting_) {
      const uint32_t each = waiting.cache == nullptr ? group : 1;
      prepare(waiting, 0, kv_head * each, (kv_head + 1) * each);
    }
    const uint32_t t = i / head_parts % token_parts * tokens;
    const uint32_t in_group = i % head_parts * heads;
    const uint32_t h = kv_head * group + in_group;
    const size_t slot = size_t{t} * q.heads + h;
    AttentionTask task;
    task.queries = q.values.data() + slot * q.padded_dim;
    task.exponents = q.exponents.data() + slot;
    task.query_stride = size_t{q.heads} * q.padded_dim;
    task.exponent_stride = q.heads;
    task.out_stride = result.columns;
    task.tokens = std::min(tokens, tokens_ - t);
    task.heads = std::min(heads, group - in_group);
    task.position = step.position + t;
    task.window = step.window;
    task.constant = step.constant;
    task.sinks = sinks.empty() ? nullptr : sinks.data() + h;
    float* out_heads = head_outputs_.data() + size_t{t} * result.columns + size_t{h} * q.head_dim;
    if (!kernels_.attention(kv_cache.view(step.layer, kv_head), task, pool, scratch().attention,
                            out_heads)) {
      exhausted_.store(true, std::memory_order_relaxed);
    }
  };
  if (together) {
    for (uint32_t i = 0; i < tasks(); ++i) run(i, &pool_);
  } else {
    pool_.split(tasks(), 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) run(static_cast<uint32_t>(i), nullptr);
    });
  }
  waiting_.clear();
  each_token(result.columns, [&](uint32_t t) {
    if (step.gated) {
      const float* gate = floats_[step.gate.id].row(t);
      for (uint32_t h = 0; h < q.heads; ++h) {
        kernels_.gate(gate + (2 * size_t{h} + 1) * q.head_dim, q.head_dim,
                      head_outputs_.data() + size_t{t} * result.columns + size_t{h} * q.head_dim);
      }
    }
    quantize_row(head_outputs_.data() + size_t{t} * result.columns, result, t);
  });
}

}  // namespace tandem::kernels::cpu
