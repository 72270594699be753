#include "kernels/profile.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/cpu/kv_cache.h"

namespace tandem::kernels {

void Profile::reset() {
  const std::lock_guard lock(mutex_);
  times_[0] = times_[1] = {};
}

PassTimes Profile::times(bool one_token) const {
  const std::lock_guard lock(mutex_);
  return times_[one_token ? 1 : 0];
}

void Profile::add(bool one_token, const std::string& part, double seconds, uint64_t bytes,
                  uint64_t multiply_adds) {
  const std::lock_guard lock(mutex_);
  std::vector<PartTimes>& parts = times_[one_token ? 1 : 0].parts;
  auto place = std::find_if(parts.begin(), parts.end(),
                            [&](const PartTimes& one) { return one.part == part; });
  if (place == parts.end()) {
    parts.push_back({part});
    place = parts.end() - 1;
  }
  ++place->steps;
  place->seconds += seconds;
  place->bytes += bytes;
  place->multiply_adds += multiply_adds;
}

void Profile::add_pass(uint32_t tokens) {
  const std::lock_guard lock(mutex_);
  PassTimes& times = times_[tokens == 1 ? 1 : 0];
  ++times.passes;
  times.tokens += tokens;
}

template <typename Step>
void ProfiledBackend::timed(const std::string& part, uint64_t bytes, uint64_t multiply_adds,
                            Step&& step) {
  const auto start = std::chrono::steady_clock::now();
  step();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  profile_->add(tokens_ == 1, part, time.count(), bytes, multiply_adds);
}

void ProfiledBackend::label(Matrix matrix, std::string part) {
  labels_[matrix.id] = std::move(part);
}

Heads ProfiledBackend::add_heads(uint32_t heads, uint32_t head_dim) {
  const Heads handle = inner_->add_heads(heads, head_dim);
  heads_[handle.id] = {heads, head_dim};
  layers_ = true;
  return handle;
}

std::unique_ptr<KvCache> ProfiledBackend::new_cache(uint32_t layers, uint32_t kv_heads,
                                                    uint32_t head_dim,
                                                    const CacheOptions& options) {
  kv_bytes_ = cpu::CpuKvCache::chunk_bytes(kv_heads, head_dim, options.bits) / cpu::kChunk;
  return inner_->new_cache(layers, kv_heads, head_dim, options);
}

std::unique_ptr<RecurrentState> ProfiledBackend::new_recurrent(uint32_t layers,
                                                               const DeltaShape& shape) {
  state_ = shape.state();
  return inner_->new_recurrent(layers, shape);
}

void ProfiledBackend::delta_net(const DeltaStep& step, RecurrentState& state, Floats out) {
  timed("delta rule", state_ * sizeof(float), 3 * state_ * tokens_,
        [&] { inner_->delta_net(step, state, out); });
}

void ProfiledBackend::gated_norm(Floats in, const Norm& norm, Floats gate, Activations out) {
  timed("gated norm", 0, 0, [&] { inner_->gated_norm(in, norm, gate, out); });
}

Status ProfiledBackend::begin(uint32_t tokens) {
  tokens_ = tokens;
  if (layers_) profile_->add_pass(tokens);
  return inner_->begin(tokens);
}

void ProfiledBackend::load_hidden(std::span<const uint16_t> half,
                                  std::span<const int16_t> exponents, Floats out) {
  timed("boundary", 0, 0, [&] { inner_->load_hidden(half, exponents, out); });
}

void ProfiledBackend::round_hidden(Floats hidden) {
  timed("boundary", 0, 0, [&] { inner_->round_hidden(hidden); });
}

void ProfiledBackend::store_hidden(Floats hidden, std::span<uint16_t> half,
                                   std::span<int16_t> exponents) {
  timed("boundary", 0, 0, [&] { inner_->store_hidden(hidden, half, exponents); });
}

void ProfiledBackend::norm(Floats in, const Norm& norm, Activations out) {
  timed("norm", 0, 0, [&] { inner_->norm(in, norm, out); });
}

void ProfiledBackend::norm_floats(Floats in, const Norm& norm, Floats out) {
  timed("norm", 0, 0, [&] { inner_->norm_floats(in, norm, out); });
}

void ProfiledBackend::matmul(Activations in, std::span<const Product> products) {
  uint64_t bytes = 0;
  uint64_t multiply_adds = 0;
  for (const Product& product : products) {
    const PackedMatrix& matrix = inner_->matrix(product.matrix);
    bytes += matrix.bytes();
    multiply_adds += uint64_t{matrix.rows} * matrix.columns * tokens_;
  }
  const auto label = labels_.find(products.front().matrix.id);
  timed(label == labels_.end() ? "products" : label->second, bytes, multiply_adds,
        [&] { inner_->matmul(in, products); });
}

void ProfiledBackend::add(Floats hidden, Floats delta) {
  timed("add", 0, 0, [&] { inner_->add(hidden, delta); });
}

void ProfiledBackend::scale(Floats x, float factor) {
  timed("add", 0, 0, [&] { inner_->scale(x, factor); });
}

void ProfiledBackend::quantize(Floats in, Activations out) {
  timed("norm", 0, 0, [&] { inner_->quantize(in, out); });
}

void ProfiledBackend::gated_silu(Floats gate, Floats up, Activations out) {
  timed("activation", 0, 0, [&] { inner_->gated_silu(gate, up, out); });
}

void ProfiledBackend::gelu(Floats in, Activations out) {
  timed("activation", 0, 0, [&] { inner_->gelu(in, out); });
}

void ProfiledBackend::gated_gelu(Floats gate, Floats up, Activations out) {
  timed("activation", 0, 0, [&] { inner_->gated_gelu(gate, up, out); });
}

void ProfiledBackend::queries(Floats in, const Norm* norm, const Rotary& rotary, Heads out) {
  timed("heads", 0, 0, [&] { inner_->queries(in, norm, rotary, out); });
}

void ProfiledBackend::keys(Floats in, const Norm* norm, const Rotary& rotary, KvCache& cache,
                           uint32_t layer, uint32_t position) {
  timed("heads", 0, 0, [&] { inner_->keys(in, norm, rotary, cache, layer, position); });
}

void ProfiledBackend::values(Floats in, KvCache& cache, uint32_t layer, uint32_t position) {
  timed("heads", 0, 0, [&] { inner_->values(in, cache, layer, position); });
}

void ProfiledBackend::experts(Activations in, Floats logits, const ExpertsStep& step, Floats out) {
  const auto size = [&](const Expert& expert) {
    Size sum;
    for (const ExpertMatrix* one : {&expert.gate, &expert.up, &expert.down}) {
      const PackedMatrix& matrix = inner_->matrix(one->matrix);
      const uint64_t planes = one->rest ? 2 : 1;
      sum.bytes += planes * matrix.bytes();
      sum.weights += planes * matrix.rows * matrix.columns;
    }
    return sum;
  };
  if (profile_->routed) {
    const size_t columns = step.experts.size() + (step.shared != nullptr ? 1 : 0);
    std::vector<float> values(tokens_ * columns);
    inner_->read(logits, 0, tokens_, values);
    profile_->routed(step, values);
  }
  const Size one = size(step.experts.front());
  const uint64_t used = uint64_t{step.chosen} * tokens_;
  // Of several tokens' choices many are the same; at most all experts are read.
  uint64_t bytes = one.bytes * std::min<uint64_t>(used, step.experts.size());
  uint64_t multiply_adds = one.weights * used;
  if (step.shared != nullptr) {
    const Size shared = size(*step.shared);
    bytes += shared.bytes;
    multiply_adds += shared.weights * tokens_;
  }
  timed("experts", bytes, multiply_adds, [&] { inner_->experts(in, logits, step, out); });
}

void ProfiledBackend::attention(Heads queries, const KvCache& cache, const AttentionStep& step,
                                Activations out) {
  const HeadShape shape = heads_[queries.id];
  uint64_t pairs = 0;
  for (uint32_t t = 0; t < tokens_; ++t) {
    const uint64_t seen = uint64_t{step.position} + t + 1;
    pairs += step.window == 0 ? seen : std::min<uint64_t>(seen, step.window);
  }
  uint64_t positions = uint64_t{step.position} + tokens_;
  if (step.window != 0) positions = std::min(positions, uint64_t{step.window} + tokens_ - 1);
  timed("attention", positions * kv_bytes_, 2 * pairs * shape.heads * shape.head_dim,
        [&] { inner_->attention(queries, cache, step, out); });
}

}  // namespace tandem::kernels
