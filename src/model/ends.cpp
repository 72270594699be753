// The host's part: embedding, final norm and output head.
#include <algorithm>
#include <array>

#include "arithmetic/hidden.h"
#include "kernels/kernels.h"
#include "kernels/profile.h"
#include "model/families.h"
#include "model/layer.h"
#include "model/stage.h"

namespace tandem::model {
namespace {

class LocalEnds final : public Ends {
 public:
  LocalEnds(const ModelConfig& config, std::unique_ptr<kernels::Backend> backend)
      : config_(config), backend_(std::move(backend)) {}

  [[nodiscard]] Status load_tensors(weights::TensorSource& source, WeightBits bits,
                                    ThreadPool& pool, const LoadProgress& progress,
                                    weights::PackedStore* cache) {
    uint64_t total = 0;
    for (const weights::TensorInfo& wanted : ends_tensors(config_)) {
      const weights::TensorInfo* found = source.find(wanted.name);
      if (found != nullptr) total += found->bytes();
    }
    const TensorNames& names = config_.family->names;
    const uint32_t planes = weight_planes(bits);
    WeightLoader loader(source, *backend_, pool, ends_format(bits), planes, total, progress, cache);
    hidden_ = backend_->add_floats(config_.hidden_size);
    normed_floats_ = backend_->add_floats(config_.hidden_size);
    normed_ = backend_->add_activations(config_.hidden_size);
    logits_ = backend_->add_floats(config_.vocab);

    const MatrixName embedding = embedding_matrix(config_);
    loader.expect({&embedding, 1});
    for (const MatrixName& plane : with_rests({&embedding, 1}, planes)) {
      TANDEM_ASSIGN(auto matrix, loader.matrix(plane));
      embedding_.push_back(std::move(matrix));
    }
    if (config_.learned_positions) {
      TANDEM_ASSIGN(positions_,
                    loader.floats(config_.prefix + std::string(names.positions) + ".weight", 0,
                                  uint64_t{config_.context} * config_.hidden_size));
    }
    TANDEM_ASSIGN(norm_, loader.norm(config_.prefix + std::string(names.final_norm), config_,
                                     config_.hidden_size, config_.norm));
    if (config_.tied_embeddings) {
      // One copy serves both: rows are read back for the embedding.
      TANDEM_ASSIGN(head_, loader.factor(std::move(embedding_), logits_));
      embedding_.clear();
    } else {
      const MatrixName head = head_matrix(config_);
      loader.expect({&head, 1});
      TANDEM_ASSIGN(head_, loader.factor(head, logits_));
    }
    bytes_ = loader.bytes();
    return {};
  }

  [[nodiscard]] kernels::Matrix head() const { return head_.product.matrix; }

  [[nodiscard]] Result<HiddenStates> embed(std::span<const uint32_t> tokens,
                                           uint32_t position) override {
    if (position + uint64_t{tokens.size()} > config_.context) {
      return invalid("position " + std::to_string(position + uint64_t{tokens.size()}) +
                     " is past the model's context of " + std::to_string(config_.context));
    }
    HiddenStates hidden;
    hidden.resize(static_cast<uint32_t>(tokens.size()), config_.hidden_size);
    std::array<const kernels::PackedMatrix*, 2> tables = {};
    if (config_.tied_embeddings) {
      tables[0] = &backend_->matrix(head_.product.matrix);
      if (head_.rest) tables[1] = &backend_->matrix(head_.rest->matrix);
    } else {
      for (size_t i = 0; i < embedding_.size(); ++i) tables[i] = &embedding_[i];
    }
    std::vector<int32_t> integers(config_.hidden_size);
    std::vector<float> values(config_.hidden_size);
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (tokens[t] >= config_.vocab) {
        return invalid("token " + std::to_string(tokens[t]) + " is outside the vocabulary of " +
                       std::to_string(config_.vocab));
      }
      kernels::load_row(*tables[0], tokens[t], integers);
      const float scale = tables[0]->row_scales[tokens[t]];
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(integers[i]) * scale;
      }
      if (tables[1] != nullptr) {
        kernels::load_row(*tables[1], tokens[t], integers);
        const float finer = tables[1]->row_scales[tokens[t]];
        for (size_t i = 0; i < values.size(); ++i) {
          const float rest = static_cast<float>(integers[i]) * finer;
          values[i] += rest;
        }
      }
      if (config_.embedding_scale != 1) {
        for (float& value : values) value *= config_.embedding_scale;
      }
      if (config_.learned_positions) {
        const float* own = &positions_[(position + t) * config_.hidden_size];
        for (size_t i = 0; i < values.size(); ++i) values[i] += own[i];
      }
      if (!arithmetic::to_boundary(
              values, std::span(hidden.values).subspan(t * config_.hidden_size, values.size()),
              hidden.exponents[t])) {
        return invalid("the embedding of token " + std::to_string(tokens[t]) +
                       " is infinite or not a number");
      }
    }
    return hidden;
  }

  [[nodiscard]] Status logits(const HiddenStates& hidden, uint32_t first, uint32_t count,
                              std::vector<float>& logits) override {
    TANDEM_TRY(check(hidden, first, count));
    logits.resize(uint64_t{count} * config_.vocab);
    if (count == 0) return {};
    TANDEM_TRY(load(hidden, first, count));
    backend_->norm(hidden_, norm_, normed_);
    multiply(normed_, {&head_}, *backend_);
    if (config_.logit_scale != 1) backend_->scale(logits_, config_.logit_scale);
    backend_->read(logits_, 0, count, logits);
    return backend_->finish();
  }

  [[nodiscard]] Result<std::vector<float>> final_norm(const HiddenStates& hidden) override {
    TANDEM_TRY(check(hidden, 0, hidden.tokens()));
    std::vector<float> values(hidden.values.size());
    if (hidden.tokens() == 0) return values;
    TANDEM_TRY(load(hidden, 0, hidden.tokens()));
    backend_->norm_floats(hidden_, norm_, normed_floats_);
    backend_->read(normed_floats_, 0, hidden.tokens(), values);
    TANDEM_TRY(backend_->finish());
    return values;
  }

  [[nodiscard]] uint64_t bytes() const override { return bytes_; }

 private:
  [[nodiscard]] Status check(const HiddenStates& hidden, uint32_t first, uint32_t count) const {
    if (hidden.width != config_.hidden_size ||
        hidden.values.size() != uint64_t{hidden.tokens()} * hidden.width ||
        uint64_t{first} + count > hidden.tokens()) {
      return invalid("hidden states of width " + std::to_string(hidden.width) + " and " +
                     std::to_string(hidden.tokens()) + " tokens; wanted width " +
                     std::to_string(config_.hidden_size) + " and tokens up to " +
                     std::to_string(uint64_t{first} + count));
    }
    return {};
  }

  [[nodiscard]] Status load(const HiddenStates& hidden, uint32_t first, uint32_t count) {
    TANDEM_TRY(backend_->begin(count));
    const std::span values(hidden.values);
    const std::span exponents(hidden.exponents);
    backend_->load_hidden(
        values.subspan(uint64_t{first} * hidden.width, uint64_t{count} * hidden.width),
        exponents.subspan(first, count), hidden_);
    return {};
  }

  ModelConfig config_;
  std::unique_ptr<kernels::Backend> backend_;
  std::vector<kernels::PackedMatrix> embedding_;  // each plane; empty if tied
  std::vector<float> positions_;                  // [context, hidden_size]
  kernels::Norm norm_;
  Factor head_;
  kernels::Floats hidden_;
  kernels::Floats normed_floats_;
  kernels::Activations normed_;
  kernels::Floats logits_;
  uint64_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Ends>> Ends::load(const ModelConfig& config, const StageOptions& options,
                                         weights::TensorSource& source,
                                         const LoadProgress& progress) {
  std::shared_ptr<ThreadPool> pool = options.pool;
  if (pool == nullptr) pool = std::make_shared<ThreadPool>(options.threads);
  TANDEM_ASSIGN(auto backend, kernels::make_cpu_backend(name(options.isa), pool));
  kernels::ProfiledBackend* profiled = nullptr;
  if (options.profile != nullptr) {
    auto around = std::make_unique<kernels::ProfiledBackend>(std::move(backend), options.profile);
    profiled = around.get();
    backend = std::move(around);
  }
  auto ends = std::make_unique<LocalEnds>(config, std::move(backend));
  TANDEM_TRY(ends->load_tensors(source, options.weights, *pool, progress, options.cache.get()));
  if (profiled != nullptr) profiled->label(ends->head(), "head");
  return std::unique_ptr<Ends>(std::move(ends));
}

}  // namespace tandem::model
