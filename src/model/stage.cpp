#include "model/stage.h"

#include <algorithm>

#include "arithmetic/attention.h"
#include "arithmetic/hidden.h"
#include "kernels/kernels.h"
#include "kernels/profile.h"
#include "model/experts.h"
#include "model/layer.h"
#include "model/local_sequence.h"
#include "model/rope_config.h"

namespace tandem::model {
namespace {

class LocalStage final : public Stage {
 public:
  LocalStage(const ModelConfig& config, const StageOptions& options,
             std::unique_ptr<kernels::Backend> backend)
      : config_(config),
        options_(options),
        rope_(config.rope, config.head_dim),
        local_rope_(config.local_rope, config.head_dim),
        far_rope_(config.rope, config.head_dim, true),
        backend_(std::move(backend)) {}

  [[nodiscard]] Status load_layers(weights::TensorSource& source, ThreadPool& pool,
                                   const LoadProgress& progress) {
    uint64_t total = 0;
    for (const weights::TensorInfo& wanted :
         layer_tensors(config_, options_.first_layer, options_.last_layer)) {
      const weights::TensorInfo* found = source.find(wanted.name);
      if (found != nullptr) total += found->bytes();
    }
    buffers_ = make_buffers(config_, *backend_);
    WeightLoader loader(source, *backend_, pool, layer_format(options_.weights),
                        weight_planes(options_.weights), total, progress, options_.cache.get());
    if (options_.experts_memory) {
      loader.leave_experts_on_disk();
      backend_->limit_experts(*options_.experts_memory);
    }
    for (uint32_t i = options_.first_layer; i < options_.last_layer; ++i) {
      TANDEM_ASSIGN(auto layer, load_layer(config_, i, buffers_, loader));
      layers_.push_back(layer);
    }
    bytes_ = loader.bytes();
    if (options_.experts_memory) {
      uint64_t movable = 0;
      for (uint32_t i = options_.first_layer; i < options_.last_layer; ++i) {
        movable += movable_expert_bytes(config_, i, options_.weights);
      }
      bytes_ += std::min(movable, *options_.experts_memory);
    }
    return {};
  }

  void label_parts(kernels::ProfiledBackend& backend) const {
    for (const Layer& layer : layers_) {
      if (layer.kind == LayerKind::kDeltaNet) {
        backend.label(layer.mixed.product.matrix, "delta in");
      } else {
        backend.label(layer.query.product.matrix, "q, k, v");
      }
      backend.label(layer.output.product.matrix, "o");
      if (!layer.moe.experts.empty()) {
        backend.label(layer.moe.router.product.matrix, "router");
        continue;
      }
      const bool gated = config_.gated();
      backend.label((gated ? layer.gate : layer.up).product.matrix, gated ? "gate, up" : "up");
      backend.label(layer.down.product.matrix, "down");
    }
  }

  [[nodiscard]] std::unique_ptr<Sequence> new_sequence(uint32_t context) override {
    const uint32_t recurrent = config_.recurrent_layers(options_.first_layer, options_.last_layer);
    const uint32_t attention = static_cast<uint32_t>(layers_.size()) - recurrent;
    const uint32_t kept = attention * cached_ways(config_);
    kernels::CacheOptions held;
    held.bits = static_cast<uint32_t>(options_.kv);
    held.context = context;
    for (uint32_t way = 0; way < cached_ways(config_); ++way) {
      for (const Layer& layer : layers_) {
        if (layer.kind != LayerKind::kDeltaNet) held.windows.push_back(layer.window);
      }
    }
    auto cache = backend_->new_cache(kept, config_.kv_heads, config_.head_dim, held);
    std::unique_ptr<kernels::RecurrentState> state;
    if (recurrent != 0) state = backend_->new_recurrent(recurrent, config_.delta);
    return std::make_unique<LocalSequence>(this, std::move(cache), kept, std::move(state),
                                           checkpoint_limit(config_));
  }

  [[nodiscard]] Status run(Sequence& sequence, uint32_t position, HiddenStates& hidden) override {
    auto* own = dynamic_cast<LocalSequence*>(&sequence);
    if (own == nullptr || own->owner() != this) {
      return invalid("this sequence belongs to another stage");
    }
    TANDEM_TRY(check(own->length(), position, hidden));
    const uint32_t tokens = hidden.tokens();
    if (tokens == 0) return {};
    const uint32_t far = config_.far_from();
    if (position < far && position + tokens > far) return run_both(*own, far - position, hidden);
    TANDEM_TRY(own->reserve(position + tokens));
    TANDEM_TRY(backend_->begin(tokens));
    PassState state;
    set_rotations(position, tokens, state);
    backend_->load_hidden(hidden.values, hidden.exponents, buffers_.hidden);
    state.cache = &own->cache();
    state.recurrent = own->recurrent();
    state.position = position;
    uint32_t of_kind[2] = {};
    const auto attention = static_cast<uint32_t>(layers_.size()) -
                           config_.recurrent_layers(options_.first_layer, options_.last_layer);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (i != 0) backend_->round_hidden(buffers_.hidden);
      const uint32_t own_layer = of_kind[layers_[i].kind == LayerKind::kDeltaNet ? 1 : 0]++;
      state.far_cache_layer = attention + own_layer;
      state.cache_layer = far != 0 && position >= far ? state.far_cache_layer : own_layer;
      run_layer(config_, layers_[i], buffers_, state, *backend_);
    }
    // An own copy: a failed pass leaves the caller's hidden states and the sequence as they were.
    output_.resize(tokens, hidden.width);
    backend_->store_hidden(buffers_.hidden, output_.values, output_.exponents);
    const Status status = backend_->finish();
    own->append(tokens, status.ok());
    if (!status.ok()) {
      return status.error().in("layers " + std::to_string(options_.first_layer) + "-" +
                               std::to_string(options_.last_layer - 1));
    }
    std::swap(hidden, output_);
    return {};
  }

  [[nodiscard]] const StageOptions& options() const override { return options_; }
  [[nodiscard]] uint64_t bytes() const override { return bytes_; }

 private:
  // The first `near` tokens and the others as passes of their own, which are rotated differently.
  [[nodiscard]] Status run_both(LocalSequence& sequence, uint32_t near, HiddenStates& hidden) {
    const uint32_t position = sequence.length();
    const auto cut = static_cast<std::ptrdiff_t>(near);
    const std::ptrdiff_t values = cut * hidden.width;
    HiddenStates first;
    HiddenStates second;
    first.width = second.width = hidden.width;
    first.exponents.assign(hidden.exponents.begin(), hidden.exponents.begin() + cut);
    first.values.assign(hidden.values.begin(), hidden.values.begin() + values);
    second.exponents.assign(hidden.exponents.begin() + cut, hidden.exponents.end());
    second.values.assign(hidden.values.begin() + values, hidden.values.end());
    TANDEM_TRY(run(sequence, position, first));
    if (Status status = run(sequence, position + near, second); !status.ok()) {
      if (Status back = sequence.rollback(position); !back.ok()) return back;
      return status;
    }
    std::copy(first.exponents.begin(), first.exponents.end(), hidden.exponents.begin());
    std::copy(first.values.begin(), first.values.end(), hidden.values.begin());
    std::copy(second.exponents.begin(), second.exponents.end(), hidden.exponents.begin() + cut);
    std::copy(second.values.begin(), second.values.end(), hidden.values.begin() + values);
    return {};
  }

  // What each kind of layer needs of a pass's positions.
  void set_rotations(uint32_t position, uint32_t tokens, PassState& state) {
    const uint32_t far = config_.far_from();
    set_rotation(nullptr, 0, position, tokens, state.rotations[size_t{0}]);
    if (config_.rope.enabled) {
      LayerRotation& global = state.rotations[static_cast<size_t>(LayerRope::kGlobal)];
      set_rotation(&rope_, 0, position, tokens, global);
      LayerRotation later;
      if (far != 0) set_rotation(&far_rope_, 2, position, tokens, later);
      if (far != 0 && position >= far) {
        global = later;
      } else {
        state.far = later.rotary;
      }
    }
    if (config_.local_rope.enabled) {
      set_rotation(&local_rope_, 1, position, tokens,
                   state.rotations[static_cast<size_t>(LayerRope::kLocal)]);
    }
  }

  // `rope` is null for layers without; `table` is its place in the backend.
  void set_rotation(const Rope* rope, uint32_t table, uint32_t position, uint32_t tokens,
                    LayerRotation& rotation) {
    const double factor = rope == nullptr ? 1.0 : rope->score_factor();
    // A root is exactly rounded by IEEE 754, so the same on every machine.
    const double scale = config_.attention_multiplier != 0
                             ? factor * config_.attention_multiplier
                             : factor / __builtin_sqrt(config_.query_scalar);
    rotation.score_constant = arithmetic::score_constant(scale);
    if (rope == nullptr) return;
    rotation.rotary = rope->rotary(table);
    rotations_.clear();
    rope->rotations(position, tokens, rotations_);
    backend_->set_rotations(table, rotations_);
  }

  [[nodiscard]] Status check(uint32_t length, uint32_t position, const HiddenStates& hidden) const {
    if (position != length) {
      return invalid("asked to continue at position " + std::to_string(position) +
                     ", the cache holds " + std::to_string(length));
    }
    if (hidden.width != config_.hidden_size ||
        hidden.values.size() != uint64_t{hidden.tokens()} * hidden.width) {
      return invalid("hidden states of width " + std::to_string(hidden.width) + " with " +
                     std::to_string(hidden.values.size()) + " values; the model's width is " +
                     std::to_string(config_.hidden_size));
    }
    if (uint64_t{position} + hidden.tokens() > config_.context) {
      return invalid("position " + std::to_string(uint64_t{position} + hidden.tokens()) +
                     " is past the model's context of " + std::to_string(config_.context));
    }
    for (const int16_t exponent : hidden.exponents) {
      if (exponent < -94 || exponent > 113) {
        return invalid("a hidden state's exponent is " + std::to_string(exponent) +
                       ", outside -94 to 113");
      }
    }
    for (const uint16_t value : hidden.values) {
      if ((value & 0x7c00U) == 0x7c00U) {
        return invalid("a hidden state is infinite or not a number");
      }
    }
    return {};
  }

  ModelConfig config_;
  StageOptions options_;
  Rope rope_;
  Rope local_rope_;
  Rope far_rope_;
  std::unique_ptr<kernels::Backend> backend_;
  LayerBuffers buffers_;
  std::vector<Layer> layers_;
  std::vector<arithmetic::Rotation> rotations_;
  HiddenStates output_;
  uint64_t bytes_ = 0;
};

}  // namespace

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kBest:
      return "best";
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
    case Isa::kNeon:
      return "neon";
    case Isa::kDotprod:
      return "dotprod";
    case Isa::kI8mm:
      return "i8mm";
    case Isa::kSimd128:
      return "simd128";
  }
  return "unknown";
}

Result<Isa> parse_isa(std::string_view text) {
  std::string names;
  for (const Isa isa : kIsas) {
    if (text == name(isa)) return isa;
    names += (names.empty() ? "" : ", ") + std::string(name(isa));
  }
  return invalid("unknown instruction set '" + std::string(text) + "': " + names);
}

Result<std::unique_ptr<Stage>> Stage::load(const ModelConfig& config, const StageOptions& options,
                                           weights::TensorSource& source,
                                           const LoadProgress& progress) {
  if (options.first_layer > options.last_layer || options.last_layer > config.layers) {
    return invalid("layers " + std::to_string(options.first_layer) + " to " +
                   std::to_string(options.last_layer) + " are not a range of the model's " +
                   std::to_string(config.layers));
  }
  StageOptions own = options;
  if (own.pool == nullptr) own.pool = std::make_shared<ThreadPool>(options.threads);
  TANDEM_ASSIGN(auto backend, kernels::make_cpu_backend(name(options.isa), own.pool));
  kernels::ProfiledBackend* profiled = nullptr;
  if (own.profile != nullptr) {
    auto around = std::make_unique<kernels::ProfiledBackend>(std::move(backend), own.profile);
    profiled = around.get();
    backend = std::move(around);
  }
  auto stage = std::make_unique<LocalStage>(config, own, std::move(backend));
  TANDEM_TRY(stage->load_layers(source, *own.pool, progress));
  if (profiled != nullptr) stage->label_parts(*profiled);
  return std::unique_ptr<Stage>(std::move(stage));
}

}  // namespace tandem::model
