#include "model/stage.h"

#include <algorithm>

#include "arithmetic/attention.h"
#include "arithmetic/hidden.h"
#include "kernels/kernels.h"
#include "kernels/profile.h"
#include "model/layer.h"
#include "model/local_sequence.h"
#include "model/rope_config.h"

namespace tandem::model {
namespace {

class LocalStage final : public Stage {
 public:
  LocalStage(const ModelConfig& config, const StageOptions& options,
             std::unique_ptr<kernels::Backend> backend)
      : config_(config), options_(options), rope_(config), backend_(std::move(backend)) {}

  [[nodiscard]] Status load_layers(weights::TensorSource& source, ThreadPool& pool,
                                   const LoadProgress& progress) {
    uint64_t total = 0;
    for (const weights::TensorInfo& wanted :
         layer_tensors(config_, options_.first_layer, options_.last_layer)) {
      const weights::TensorInfo* found = source.find(wanted.name);
      if (found != nullptr) total += found->bytes();
    }
    buffers_ = make_buffers(config_, *backend_);
    WeightLoader loader(source, *backend_, pool, layer_format(options_.weights), total, progress,
                        options_.cache.get());
    for (uint32_t i = options_.first_layer; i < options_.last_layer; ++i) {
      TANDEM_ASSIGN(auto layer, load_layer(config_, i, buffers_, loader));
      layers_.push_back(layer);
    }
    bytes_ = loader.bytes();
    return {};
  }

  void label_parts(kernels::ProfiledBackend& backend) const {
    for (const Layer& layer : layers_) {
      if (layer.kind == LayerKind::kDeltaNet) {
        backend.label(layer.mixed.matrix, "delta in");
      } else {
        backend.label(layer.query.matrix, "q, k, v");
      }
      backend.label(layer.output.matrix, "o");
      const bool gated = config_.mlp == MlpKind::kGatedSilu;
      backend.label(gated ? layer.gate.matrix : layer.up.matrix, gated ? "gate, up" : "up");
      backend.label(layer.down.matrix, "down");
    }
  }

  [[nodiscard]] std::unique_ptr<Sequence> new_sequence() override {
    const uint32_t recurrent = config_.recurrent_layers(options_.first_layer, options_.last_layer);
    const uint32_t attention = static_cast<uint32_t>(layers_.size()) - recurrent;
    kernels::CacheOptions held;
    held.bits = static_cast<uint32_t>(options_.kv);
    for (const Layer& layer : layers_) {
      if (layer.kind != LayerKind::kDeltaNet) held.windows.push_back(layer.window);
    }
    auto cache = backend_->new_cache(attention, config_.kv_heads, config_.head_dim, held);
    std::unique_ptr<kernels::RecurrentState> state;
    if (recurrent != 0) state = backend_->new_recurrent(recurrent, config_.delta);
    return std::make_unique<LocalSequence>(this, std::move(cache), attention, std::move(state),
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
    TANDEM_TRY(own->reserve(position + tokens));
    TANDEM_TRY(backend_->begin(tokens));
    if (config_.rope.enabled) {
      rotations_.clear();
      rope_.rotations(position, tokens, rotations_);
      backend_->set_rotations(rotations_);
    }
    backend_->load_hidden(hidden.values, hidden.exponents, buffers_.hidden);
    PassState state;
    state.cache = &own->cache();
    state.recurrent = own->recurrent();
    state.position = position;
    state.score_constant =
        arithmetic::score_constant(rope_.score_factor() / square_root(config_.head_dim));
    uint32_t of_kind[2] = {};
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (i != 0) backend_->round_hidden(buffers_.hidden);
      state.cache_layer = of_kind[layers_[i].kind == LayerKind::kDeltaNet ? 1 : 0]++;
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
  // Exactly rounded by IEEE 754, so the same on every machine.
  static double square_root(double x) { return __builtin_sqrt(x); }

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
