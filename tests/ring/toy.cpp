#include "ring/toy.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "base/hash.h"
#include "model/config.h"

namespace tandem::toy {
namespace {

class ToySequence final : public model::Sequence {
 public:
  explicit ToySequence(size_t width) : width_(width) {}
  uint32_t length() const override { return static_cast<uint32_t>(caches_.size()); }
  uint64_t bytes() const override { return caches_.size() * width_ * 4; }
  Status rollback(uint32_t length) override {
    if (length > caches_.size()) return invalid("rollback past the end");
    caches_.resize(length);
    return {};
  }
  /// State after each position; each depends on all before it.
  std::vector<std::vector<uint32_t>> caches_;
  size_t width_;
};

class ToyStage final : public model::Stage {
 public:
  ToyStage(const model::StageOptions& options, const model::ModelConfig& config,
           std::vector<uint32_t> weights, std::shared_ptr<Behaviour> behaviour)
      : options_(options),
        width_(config.hidden_size),
        bytes_(model::stage_bytes(config, options)),
        weights_(std::move(weights)),
        behaviour_(std::move(behaviour)) {}

  std::unique_ptr<model::Sequence> new_sequence(uint32_t) override {
    return std::make_unique<ToySequence>(width_);
  }

  Status run(model::Sequence& sequence, uint32_t position, model::HiddenStates& hidden) override {
    auto& mine = dynamic_cast<ToySequence&>(sequence);
    if (position != mine.length()) return invalid("toy: wrong position");
    const uint32_t tokens = hidden.tokens();
    const auto until =
        std::chrono::steady_clock::now() +
        std::chrono::microseconds(behaviour_->pass_us + tokens * behaviour_->token_us);
    while (behaviour_->hang) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (behaviour_->fail) return invalid("the toy broke");
    for (uint32_t t = 0; t < tokens; ++t) {
      std::vector<uint32_t> cache = mine.caches_.empty()
                                        ? std::vector<uint32_t>(weights_.size() * width_)
                                        : mine.caches_.back();
      uint16_t* row = hidden.values.data() + size_t{t} * width_;
      for (size_t layer = 0; layer < weights_.size(); ++layer) {
        uint32_t* state = cache.data() + layer * width_;
        for (uint32_t i = 0; i < width_; ++i) {
          state[i] = (state[i] + row[i]) * 2654435761u + weights_[layer];
        }
        for (uint32_t i = 0; i < width_; ++i) {
          // 0x77ff: never the exponent of infinities.
          row[i] = static_cast<uint16_t>((state[(i + 1) % width_] >> 16) & 0x77ff);
        }
        hidden.exponents[t] = static_cast<int16_t>((hidden.exponents[t] + state[0] % 50) % 100);
      }
      mine.caches_.push_back(std::move(cache));
    }
    if (behaviour_->not_finite) hidden.values[0] = 0x7e00;
    if (behaviour_->wrong_size) hidden.resize(tokens + 1, width_);
    while (std::chrono::steady_clock::now() < until) {
    }
    return {};
  }

  const model::StageOptions& options() const override { return options_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  const model::StageOptions options_;
  const uint32_t width_;
  const uint64_t bytes_;
  const std::vector<uint32_t> weights_;  ///< a digest of each layer's tensors
  const std::shared_ptr<Behaviour> behaviour_;
};

}  // namespace

ring::StageLoader loader(std::shared_ptr<Behaviour> behaviour) {
  return [behaviour = std::move(behaviour)](
             const model::ModelConfig& config, const model::StageOptions& options,
             weights::TensorSource& source,
             const model::LoadProgress& progress) -> Result<std::unique_ptr<model::Stage>> {
    std::vector<uint32_t> weights;
    for (uint32_t layer = options.first_layer; layer < options.last_layer; ++layer) {
      Sha256 hash;
      for (const auto& expected : model::layer_tensors(config, layer, layer + 1)) {
        TANDEM_ASSIGN(const weights::TensorData data, source.read(expected.name));
        hash.update(data.bytes);
        std::this_thread::sleep_for(std::chrono::milliseconds(behaviour->load_ms));
        ++behaviour->loads;
        if (!progress(layer - options.first_layer, options.last_layer - options.first_layer)) {
          return Error{ErrorKind::kCancelled, "stopped"};
        }
      }
      const Digest digest = hash.digest();
      weights.push_back(digest[0] | digest[1] << 8 | digest[2] << 16);
    }
    return std::unique_ptr<model::Stage>(
        std::make_unique<ToyStage>(options, config, std::move(weights), behaviour));
  };
}

std::string config_json(uint32_t layers, uint32_t hidden, uint32_t context) {
  return R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu",)"
         R"("num_hidden_layers":)" +
         std::to_string(layers) + R"(,"hidden_size":)" + std::to_string(hidden) +
         R"(,"intermediate_size":)" + std::to_string(2 * hidden) +
         R"(,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":128,)"
         R"("max_position_embeddings":)" +
         std::to_string(context) +
         R"(,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true})";
}

Model::Model(uint32_t layers, uint32_t hidden, uint32_t context)
    : json(config_json(layers, hidden, context)) {
  config = *model::parse_config(json);
  manifest.config = sha256(json);
  std::mt19937 random(7);
  for (auto info : model::layer_tensors(config, 0, layers)) {
    info.dtype = weights::DType::kF16;
    std::vector<std::byte> bytes(info.bytes());
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    manifest.tensors.push_back({info, sha256(bytes)});
    contents[info.name] = std::move(bytes);
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.info.name < b.info.name; });
}

const weights::TensorInfo* Model::find(std::string_view tensor) const {
  const auto* entry = manifest.find(tensor);
  return entry == nullptr ? nullptr : &entry->info;
}

Result<weights::TensorData> Model::read(std::string_view tensor) {
  const std::lock_guard lock(mutex);
  const auto found = contents.find(tensor);
  if (found == contents.end()) return Error{ErrorKind::kNotFound, "no such tensor"};
  ++reads[std::string(tensor)];
  return weights::TensorData{*find(tensor), found->second, nullptr};
}

model::HiddenStates input(const Model& model, uint32_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  model::HiddenStates hidden;
  hidden.resize(tokens, model.config.hidden_size);
  for (auto& value : hidden.values) value = static_cast<uint16_t>(random() & 0x77ff);
  for (auto& exponent : hidden.exponents) exponent = static_cast<int16_t>(random() % 100);
  return hidden;
}

model::HiddenStates rows(const model::HiddenStates& hidden, uint32_t first, uint32_t count) {
  model::HiddenStates part;
  part.resize(count, hidden.width);
  std::copy_n(hidden.values.begin() + first * hidden.width, count * hidden.width,
              part.values.begin());
  std::copy_n(hidden.exponents.begin() + first, count, part.exponents.begin());
  return part;
}

ring::RingOptions options(Model& model, std::vector<ring::RingWorker> workers) {
  ring::RingOptions options;
  options.config_json = model.json;
  options.config = model.config;
  options.manifest = &model.manifest;
  options.source = &model;
  options.workers = std::move(workers);
  options.load = loader();
  return options;
}

std::unique_ptr<ring::Worker> worker(std::shared_ptr<Behaviour> behaviour, uint64_t memory) {
  ring::WorkerOptions options;
  options.memory = memory;
  options.load = loader(std::move(behaviour));
  auto worker = ring::Worker::start(std::move(options));
  return worker.ok() ? std::move(*worker) : nullptr;
}

}  // namespace tandem::toy
