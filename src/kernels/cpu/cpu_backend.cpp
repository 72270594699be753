#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <string>

namespace tandem::kernels::cpu {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

// Memory that a thread reuses from step to step.
struct Scratch {
  std::vector<float> floats;
  std::vector<float> ordered;
  std::vector<int16_t> shorts;
  std::vector<int16_t> values;
  std::vector<uint16_t> halves;
  std::vector<int32_t> integers;
  std::vector<arithmetic::Rotation> rotations;
  AttentionScratch attention;
  void grow(size_t n) {
    if (floats.size() < n) {
      floats.resize(n);
      ordered.resize(n);
      shorts.resize(n);
      values.resize(n);
      halves.resize(n);
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

CpuBackend::CpuBackend(const CpuKernels& kernels, std::shared_ptr<ThreadPool> pool)
    : kernels_(kernels), shared_pool_(std::move(pool)), pool_(*shared_pool_) {}

Result<Matrix> CpuBackend::add_matrix(PackedMatrix matrix) {
  if (matrix.data.size() == 0 && matrix.rows != 0) {
    return Error{ErrorKind::kMemory, "no memory for a matrix of " + std::to_string(matrix.rows) +
                                         " x " + std::to_string(matrix.columns)};
  }
  matrices_.push_back(std::move(matrix));
  settled_ = false;
  return Matrix{static_cast<uint32_t>(matrices_.size() - 1)};
}

Vector CpuBackend::add_vector(std::vector<float> values) {
  vectors_.push_back(std::move(values));
  return {static_cast<uint32_t>(vectors_.size() - 1)};
}

Floats CpuBackend::add_floats(uint32_t columns) {
  floats_.emplace_back().columns = columns;
  capacity_ = 0;
  return {static_cast<uint32_t>(floats_.size() - 1)};
}

Activations CpuBackend::add_activations(uint32_t columns) {
  ActivationRows& rows = activations_.emplace_back();
  rows.columns = columns;
  rows.padded = padded_columns(columns);
  capacity_ = 0;
  return {static_cast<uint32_t>(activations_.size() - 1)};
}

Heads CpuBackend::add_heads(uint32_t heads, uint32_t head_dim) {
  HeadRows& rows = heads_.emplace_back();
  rows.heads = heads;
  rows.head_dim = head_dim;
  rows.padded_dim = (head_dim + 15) / 16 * 16;
  capacity_ = 0;
  return {static_cast<uint32_t>(heads_.size() - 1)};
}

std::unique_ptr<KvCache> CpuBackend::new_cache(uint32_t layers, uint32_t kv_heads,
                                               uint32_t head_dim, const CacheOptions& options) {
  return std::make_unique<CpuKvCache>(layers, kv_heads, head_dim, options);
}

void CpuBackend::move_weights() {
  if (settled_) return;
  // Not before the first pass, whose answer is waited for; then so little that it is hardly felt.
  const auto now = WeightMover::Clock::now();
  if (pass_began_ != WeightMover::Clock::time_point{}) {
    settled_ = mover_.move(matrices_, pool_, now + pass_time_ / 4);
  }
  if (settled_) mover_ = {};
}

Status CpuBackend::begin(uint32_t tokens) {
  move_weights();
  pass_began_ = WeightMover::Clock::now();
  expert_memory_.begin_pass(matrices_);
  unreadable_ = {};
  finite_.store(true, std::memory_order_relaxed);
  exhausted_.store(false, std::memory_order_relaxed);
  if (tokens > capacity_) {
    capacity_ = 0;
    if (!grow(tokens)) {
      return Error{ErrorKind::kMemory,
                   "no memory for a pass of " + std::to_string(tokens) + " tokens"};
    }
    capacity_ = tokens;
  }
  tokens_ = tokens;
  for (ActivationRows& rows : activations_) rows.tokens = tokens;
  return {};
}

bool CpuBackend::grow(uint32_t tokens) {
  for (FloatRows& rows : floats_) {
    rows.values = AlignedArray<float>(uint64_t{tokens} * rows.columns);
    if (rows.values.size() == 0) return false;
  }
  for (ActivationRows& rows : activations_) {
    const uint64_t prepared = uint64_t{tokens} * kernels_.prepared_bytes(rows.padded);
    rows.values = AlignedArray<int16_t>(uint64_t{tokens} * rows.padded);
    rows.prepared = AlignedArray<uint8_t>(prepared);
    rows.exponents.assign(tokens, 0);
    rows.sums.assign(tokens, 0);
    if (rows.values.size() == 0 || rows.prepared.size() < prepared) return false;
  }
  uint64_t widest = 0;
  for (HeadRows& rows : heads_) {
    rows.values = AlignedArray<int16_t>(uint64_t{tokens} * rows.heads * rows.padded_dim);
    rows.exponents.assign(size_t{tokens} * rows.heads, 0);
    widest = std::max(widest, uint64_t{tokens} * rows.heads * rows.head_dim);
    if (rows.values.size() == 0) return false;
  }
  head_outputs_ = AlignedArray<float>(widest);
  return head_outputs_.size() == widest;
}

void CpuBackend::load_hidden(std::span<const uint16_t> half, std::span<const int16_t> exponents,
                             Floats out) {
  FloatRows& rows = floats_[out.id];
  each_token(rows.columns, [&](uint32_t t) {
    kernels_.from_boundary(half.data() + size_t{t} * rows.columns, rows.columns, exponents[t],
                           rows.row(t));
  });
}

void CpuBackend::round_hidden(Floats hidden) {
  FloatRows& rows = floats_[hidden.id];
  each_token(rows.columns, [&](uint32_t t) {
    Scratch& memory = scratch();
    memory.grow(rows.columns);
    uint16_t* half = memory.halves.data();
    int16_t exponent = 0;
    if (!kernels_.to_boundary(rows.row(t), rows.columns, half, &exponent)) fail();
    kernels_.from_boundary(half, rows.columns, exponent, rows.row(t));
  });
}

void CpuBackend::store_hidden(Floats hidden, std::span<uint16_t> half,
                              std::span<int16_t> exponents) {
  FloatRows& rows = floats_[hidden.id];
  each_token(rows.columns, [&](uint32_t t) {
    if (!kernels_.to_boundary(rows.row(t), rows.columns, half.data() + size_t{t} * rows.columns,
                              &exponents[t])) {
      fail();
    }
  });
}

void CpuBackend::set_rotations(uint32_t table, std::span<const arithmetic::Rotation> rotations) {
  rotations_[table].assign(rotations.begin(), rotations.end());
}

bool CpuBackend::apply(const Norm& norm, const float* x, int16_t* shorts, float* y) {
  const float* weight = vectors_[norm.weight.id].data();
  if (norm.layer) {
    return kernels_.layer_norm(x, weight, vectors_[norm.bias.id].data(), norm.constants, shorts, y);
  }
  return kernels_.rms_norm(x, weight, norm.constants, shorts, y);
}

void CpuBackend::quantize_row(const float* x, ActivationRows& out, uint32_t token) {
  int16_t* values = out.values.data() + size_t{token} * out.padded;
  if (!kernels_.quantize(x, out.columns, values, &out.exponents[token])) fail();
  kernels_.prepare(out, token, token + 1);
}

template <typename Fill>
void CpuBackend::quantize_each(Activations out, Fill&& fill) {
  ActivationRows& result = activations_[out.id];
  each_token(result.columns, [&](uint32_t t) {
    Scratch& memory = scratch();
    memory.grow(result.columns);
    fill(t, memory);
    quantize_row(memory.floats.data(), result, t);
  });
}

void CpuBackend::norm(Floats in, const Norm& norm, Activations out) {
  FloatRows& rows = floats_[in.id];
  quantize_each(out, [&](uint32_t t, Scratch& memory) {
    if (!apply(norm, rows.row(t), memory.shorts.data(), memory.floats.data())) fail();
  });
}

void CpuBackend::norm_floats(Floats in, const Norm& norm, Floats out) {
  FloatRows& rows = floats_[in.id];
  FloatRows& result = floats_[out.id];
  each_token(rows.columns, [&](uint32_t t) {
    Scratch& memory = scratch();
    memory.grow(rows.columns);
    if (!apply(norm, rows.row(t), memory.shorts.data(), result.row(t))) fail();
  });
}

void CpuBackend::matmul(Activations in, std::span<const Product> products) {
  const ActivationRows& rows = activations_[in.id];
  tasks_.clear();
  for (const Product& product : products) {
    FloatRows& out = floats_[product.out.id];
    tasks_.push_back({&matrices_[product.matrix.id], rows,
                      product.has_bias ? vectors_[product.bias.id].data() : nullptr,
                      out.values.data(), out.columns});
  }
  run(tasks_, false);
}

void CpuBackend::run(std::span<const Task> tasks, bool uneven) {
  uint64_t tiles = 0;
  uint64_t bytes = 0;
  for (const Task& task : tasks) {
    tiles += tile_count(task.matrix->rows);
    bytes += task.matrix->data.size();
  }
  // A few pieces a thread, so that a thread that is held up does not hold up the others, and none
  // so large that the others wait long for the last one; an even number of tiles, since kernels
  // take two together.
  const uint64_t pieces =
      std::max(uint64_t{pool_.threads()} * (uneven ? 32 : 16), bytes / kPieceBytes);
  const uint64_t grain = std::max<uint64_t>(1, tiles / pieces) * 2;
  pool_.split(tiles, grain, [&](uint64_t begin, uint64_t end) {
    uint64_t first = 0;
    for (const Task& task : tasks) {
      if (first >= end) break;
      const uint64_t count = tile_count(task.matrix->rows);
      const uint64_t from = std::max(begin, first);
      const uint64_t to = std::min(end, first + count);
      if (from < to) {
        kernels_.matmul(*task.matrix, task.in, static_cast<uint32_t>(from - first),
                        static_cast<uint32_t>(to - first), task.bias, task.out, task.stride);
      }
      first += count;
    }
  });
}

void CpuBackend::add(Floats hidden, Floats delta) {
  FloatRows& x = floats_[hidden.id];
  FloatRows& y = floats_[delta.id];
  each_token(x.columns, [&](uint32_t t) { kernels_.add(x.row(t), y.row(t), x.columns); });
}

void CpuBackend::scale(Floats x, float factor) {
  FloatRows& rows = floats_[x.id];
  each_token(rows.columns, [&](uint32_t t) {
    float* row = rows.row(t);
    for (uint32_t i = 0; i < rows.columns; ++i) row[i] *= factor;
  });
}

void CpuBackend::quantize(Floats in, Activations out) {
  FloatRows& rows = floats_[in.id];
  ActivationRows& result = activations_[out.id];
  each_token(rows.columns, [&](uint32_t t) { quantize_row(rows.row(t), result, t); });
}

void CpuBackend::gated_silu(Floats gate, Floats up, Activations out) {
  FloatRows& g = floats_[gate.id];
  FloatRows& u = floats_[up.id];
  quantize_each(out, [&](uint32_t t, Scratch& memory) {
    kernels_.gated_silu(g.row(t), u.row(t), g.columns, memory.floats.data());
  });
}

void CpuBackend::gelu(Floats in, Activations out) {
  FloatRows& rows = floats_[in.id];
  quantize_each(out, [&](uint32_t t, Scratch& memory) {
    kernels_.gelu(rows.row(t), rows.columns, memory.floats.data());
  });
}

void CpuBackend::gated_gelu(Floats gate, Floats up, Activations out) {
  FloatRows& g = floats_[gate.id];
  FloatRows& u = floats_[up.id];
  quantize_each(out, [&](uint32_t t, Scratch& memory) {
    float* y = memory.floats.data();
    kernels_.gelu(g.row(t), g.columns, y);
    const float* x = u.row(t);
    for (uint32_t i = 0; i < g.columns; ++i) y[i] *= x[i];
  });
}

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

void CpuBackend::queries(Floats in, const Norm* norm, const Rotary& rotary, Heads out) {
  FloatRows& rows = floats_[in.id];
  HeadRows& result = heads_[out.id];
  const size_t stride = rows.columns / result.heads;
  each_token(rows.columns, [&](uint32_t t) {
    for (uint32_t h = 0; h < result.heads; ++h) {
      const size_t slot = size_t{t} * result.heads + h;
      if (!head(rows.row(t) + h * stride, result.head_dim, norm, rotary, t,
                result.values.data() + slot * result.padded_dim, &result.exponents[slot])) {
        fail();
      }
    }
  });
}

void CpuBackend::store_heads(Floats in, const Norm* norm, const Rotary& rotary, KvCache& cache,
                             uint32_t layer, uint32_t position, StoreHead store) {
  FloatRows& rows = floats_[in.id];
  auto& kv_cache = static_cast<CpuKvCache&>(cache);
  const uint32_t head_dim = kv_cache.view(layer, 0).head_dim;
  each_token(rows.columns, [&](uint32_t t) {
    Scratch& memory = scratch();
    memory.grow(head_dim);
    std::vector<int16_t>& values = memory.values;
    for (uint32_t h = 0; h * head_dim < rows.columns; ++h) {
      int32_t exponent = 0;
      if (!head(rows.row(t) + size_t{h} * head_dim, head_dim, norm, rotary, t, values.data(),
                &exponent)) {
        fail();
      }
      (kv_cache.*store)(layer, h, position + t, values.data(), exponent);
    }
  });
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
  const auto run = [&](uint32_t i, ThreadPool* pool) {
    const uint32_t kv_head = i / (token_parts * head_parts);
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

void CpuBackend::read(Floats in, uint32_t first, uint32_t count, std::span<float> out) {
  FloatRows& rows = floats_[in.id];
  std::copy_n(rows.row(first), size_t{count} * rows.columns, out.data());
}

Status CpuBackend::finish() {
  pass_time_ = WeightMover::Clock::now() - pass_began_;
  if (!unreadable_.ok()) return unreadable_;
  if (exhausted_.load(std::memory_order_relaxed)) {
    return Error{ErrorKind::kMemory, "no memory for attention's scores"};
  }
  if (!finite_.load(std::memory_order_relaxed)) {
    return invalid(
        "an activation is infinite or not a number; the weights are broken or the model "
        "needs a wider range than binary32");
  }
  return {};
}

}  // namespace tandem::kernels::cpu
