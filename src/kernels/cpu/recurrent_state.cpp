#include "kernels/cpu/recurrent_state.h"

#include <algorithm>
#include <string>

#include "arithmetic/delta_rule.h"

namespace tandem::kernels {

uint64_t RecurrentCheckpoint::count(const DeltaShape& shape, uint32_t layers, uint32_t tokens) {
  const uint64_t rows = uint64_t{shape.kernel} - 1 + tokens;
  const uint64_t token = uint64_t{shape.keys()} + shape.values() + 2 * shape.value_heads;
  return layers * (shape.state() + rows * shape.columns() + tokens * token);
}

namespace cpu {
namespace {

constexpr uint32_t kColumns = arithmetic::kStateColumns;

struct Sizes {
  explicit Sizes(const DeltaShape& shape)
      : state(shape.state()),
        mixed((uint64_t{shape.kernel} - 1 + kRollbackWindow) * shape.columns()),
        tokens(uint64_t{kRollbackWindow} * (shape.keys() + shape.values())),
        gates(uint64_t{kRollbackWindow} * shape.value_heads * 2),
        queries(uint64_t{kRollbackWindow} * shape.keys()) {}
  uint64_t state;
  uint64_t mixed;
  uint64_t tokens;
  uint64_t gates;
  uint64_t queries;
};

void append(std::vector<float>& values, const float* from, uint64_t count) {
  values.insert(values.end(), from, from + count);
}

}  // namespace

CpuRecurrentState::CpuRecurrentState(uint32_t layers, const DeltaShape& shape,
                                     const CpuKernels& kernels, ThreadPool& pool)
    : count_(layers), shape_(shape), kernels_(kernels), pool_(pool) {}

uint64_t CpuRecurrentState::bytes_for(uint32_t layers, const DeltaShape& shape) {
  if (layers == 0) return 0;
  const Sizes sizes(shape);
  return (layers * (2 * sizes.state + sizes.mixed + sizes.tokens + sizes.gates) + sizes.queries) *
         sizeof(float);
}

Status CpuRecurrentState::reserve() {
  if (layers_.size() == count_) return {};
  const Sizes sizes(shape_);
  std::vector<Layer> layers(count_);
  queries_ = AlignedArray<float>(sizes.queries);
  bool complete = queries_.size() != 0;
  for (Layer& layer : layers) {
    for (auto& state : layer.states) state = AlignedArray<float>(sizes.state);
    layer.mixed = AlignedArray<float>(sizes.mixed);
    layer.tokens = AlignedArray<float>(sizes.tokens);
    layer.gates = AlignedArray<float>(sizes.gates);
    complete = complete && layer.states[0].size() != 0 && layer.states[1].size() != 0 &&
               layer.mixed.size() != 0 && layer.tokens.size() != 0 && layer.gates.size() != 0;
  }
  if (!complete) {
    return Error{ErrorKind::kMemory, "no memory for the recurrent state of " +
                                         std::to_string(count_) + " layers (" +
                                         std::to_string(bytes_for(count_, shape_)) + " bytes)"};
  }
  layers_ = std::move(layers);
  bytes_ = bytes_for(count_, shape_);
  return {};
}

CpuRecurrentState::Group CpuRecurrentState::begin_group(uint32_t index) {
  Layer& layer = layers_[index];
  const size_t columns = shape_.columns();
  const float* first = layer.mixed.data() + layer.logged * columns;
  std::copy(first, first + (shape_.kernel - 1) * columns, layer.mixed.data());
  layer.current ^= 1;
  layer.logged = 0;
  return {layer.mixed.data(), layer.tokens.data(), layer.gates.data(), queries_.data()};
}

void CpuRecurrentState::run_group(uint32_t index, uint32_t tokens, const float* queries,
                                  float scale, float* out) {
  Layer& layer = layers_[index];
  const float* from = layer.states[layer.current ^ 1].data();
  float* to = layer.states[layer.current].data();
  const uint32_t blocks = shape_.value_dim / kColumns;
  const uint64_t tasks = uint64_t{shape_.value_heads} * blocks;
  const uint32_t group = shape_.value_heads / shape_.key_heads;
  // A head's blocks share its keys and queries, and lie one after the other.
  const uint64_t grain = std::max<uint64_t>(1, tasks / (uint64_t{pool_.threads()} * 4));
  pool_.split(tasks, grain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const auto head = static_cast<uint32_t>(i / blocks);
      const size_t column = i * kColumns;  // of the value heads' columns together
      const size_t block = i * kColumns * shape_.key_dim;
      DeltaTask task;
      task.from = from + block;
      task.to = to + block;
      task.key_dim = shape_.key_dim;
      task.tokens = tokens;
      task.key_stride = task.value_stride = size_t{shape_.keys()} + shape_.values();
      task.keys = layer.tokens.data() + size_t{head / group} * shape_.key_dim;
      task.values = layer.tokens.data() + shape_.keys() + column;
      task.gates = layer.gates.data() + size_t{head} * 2;
      task.gate_stride = size_t{shape_.value_heads} * 2;
      task.scale = scale;
      if (queries != nullptr) {
        task.queries = queries + size_t{head / group} * shape_.key_dim;
        task.query_stride = shape_.keys();
        task.out = out + column;
        task.out_stride = shape_.values();
      }
      kernels_.delta(task);
    }
  });
  layer.logged = tokens;
}

void CpuRecurrentState::advance(uint32_t tokens, bool ok) {
  if (ok) {
    base_ = length_ + tokens - std::min(tokens, kRollbackWindow);
    length_ += tokens;
    return;
  }
  if (tokens > kRollbackWindow) {
    clear();
    return;
  }
  for (Layer& layer : layers_) {
    layer.current ^= 1;
    layer.logged = 0;
  }
  base_ = length_;
}

void CpuRecurrentState::clear() {
  for (Layer& layer : layers_) {
    auto& state = layer.states[layer.current];
    std::fill_n(state.data(), state.size(), 0.0F);
    std::fill_n(layer.mixed.data(), layer.mixed.size(), 0.0F);
    layer.logged = 0;
  }
  base_ = length_ = 0;
}

Status CpuRecurrentState::rollback(uint32_t length) {
  if (length == length_) return {};
  if (length == 0) {
    clear();
    return {};
  }
  if (length > length_ || length < base_) {
    return invalid("can't roll a recurrent state of " + std::to_string(length_) +
                   " positions back to " + std::to_string(length) + ": it can go to 0, or " +
                   std::to_string(base_) + " and on");
  }
  const uint32_t tokens = length - base_;
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (tokens == 0) {
      layer.current ^= 1;
      layer.logged = 0;
    } else {
      run_group(i, tokens, nullptr, 0, nullptr);
    }
  }
  length_ = length;
  return {};
}

const AlignedArray<float>& CpuRecurrentState::oldest(const Layer& layer) const {
  return layer.states[layer.logged == 0 ? layer.current : layer.current ^ 1];
}

Result<RecurrentCheckpoint> CpuRecurrentState::save() const {
  RecurrentCheckpoint checkpoint;
  checkpoint.shape = shape_;
  checkpoint.layers = count_;
  checkpoint.base = base_;
  checkpoint.length = length_;
  const uint32_t tokens = length_ - base_;
  std::vector<float>& values = checkpoint.values;
  values.reserve(RecurrentCheckpoint::count(shape_, count_, tokens));
  for (const Layer& layer : layers_) {
    append(values, oldest(layer).data(), shape_.state());
    append(values, layer.mixed.data(), (uint64_t{shape_.kernel} - 1 + tokens) * shape_.columns());
    append(values, layer.tokens.data(), uint64_t{tokens} * (shape_.keys() + shape_.values()));
    append(values, layer.gates.data(), uint64_t{tokens} * shape_.value_heads * 2);
  }
  return checkpoint;
}

Status CpuRecurrentState::restore(const RecurrentCheckpoint& checkpoint) {
  const uint32_t tokens = checkpoint.length - checkpoint.base;
  if (checkpoint.layers != count_ || !(checkpoint.shape == shape_) ||
      checkpoint.base > checkpoint.length || tokens > kRollbackWindow ||
      checkpoint.values.size() != RecurrentCheckpoint::count(shape_, count_, tokens)) {
    return invalid("the checkpoint is not one of these layers");
  }
  TANDEM_TRY(reserve());
  const float* at = checkpoint.values.data();
  const auto take = [&](AlignedArray<float>& into, uint64_t count) {
    std::copy_n(at, count, into.data());
    at += count;
  };
  for (uint32_t i = 0; i < count_; ++i) {
    Layer& layer = layers_[i];
    take(layer.states[tokens == 0 ? layer.current : layer.current ^ 1], shape_.state());
    take(layer.mixed, (uint64_t{shape_.kernel} - 1 + tokens) * shape_.columns());
    take(layer.tokens, uint64_t{tokens} * (shape_.keys() + shape_.values()));
    take(layer.gates, uint64_t{tokens} * shape_.value_heads * 2);
    layer.logged = 0;
    if (tokens != 0) run_group(i, tokens, nullptr, 0, nullptr);
  }
  base_ = checkpoint.base;
  length_ = checkpoint.length;
  return {};
}

Result<std::vector<float>> CpuRecurrentState::values() const {
  std::vector<float> values;
  values.reserve(RecurrentCheckpoint::count(shape_, count_, 0));
  for (const Layer& layer : layers_) {
    append(values, layer.states[layer.current].data(), shape_.state());
    append(values, layer.mixed.data() + size_t{layer.logged} * shape_.columns(),
           uint64_t{shape_.kernel - 1} * shape_.columns());
  }
  return values;
}

}  // namespace cpu
}  // namespace tandem::kernels
