#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <string>

namespace tandem::kernels::cpu {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

// Memory that a thread reuses from step to step.
struct Scratch {
  std::vector<float> floats;
  std::vector<int16_t> shorts;
  std::vector<uint16_t> halves;
  std::vector<arithmetic::Rotation> rotations;
  void grow(size_t n) {
    if (floats.size() < n) {
      floats.resize(n);
      shorts.resize(n);
      halves.resize(n);
    }
  }
};

Scratch& scratch() {
  thread_local Scratch memory;
  return memory;
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
  settled_ = mover_.move(matrices_, pool_, WeightMover::Clock::now() + pass_time_ / 4);
  if (settled_) mover_ = {};
}

Status CpuBackend::begin(uint32_t tokens) {
  waiting_.clear();
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
  prepare_waiting();
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

void CpuBackend::read(Floats in, uint32_t first, uint32_t count, std::span<float> out) {
  prepare_waiting();
  FloatRows& rows = floats_[in.id];
  std::copy_n(rows.row(first), size_t{count} * rows.columns, out.data());
}

Status CpuBackend::finish() {
  prepare_waiting();
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
