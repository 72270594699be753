// One model, or a stage of it, in a WebAssembly module: what the exported functions work on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/stage.h"
#include "web/engine/host_source.h"

namespace tandem::web {

/// Used by one thread, that of the host's engine; loops are split over the helpers that joined
/// before the engine was made.
class Engine {
 public:
  struct Options {
    uint32_t threads = 1;  ///< in all; fewer if fewer helpers joined
    model::WeightBits weights = model::WeightBits::k8;
    model::Isa isa = model::Isa::kBest;
  };
  /// `config` is the text of config.json.
  static Result<std::unique_ptr<Engine>> make(std::string_view config, const Options& options);

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() = default;

  /// A safetensors file with some of the model's tensors; all before anything is loaded.
  Status add_file(uint32_t file, uint64_t size) { return source_.add(file, size); }
  /// Loads layers [first, last), in place of those held before. Sequences end.
  Status load_layers(uint32_t first, uint32_t last);
  /// Loads embedding, final norm and output head.
  Status load_ends();

  /// A KV cache for the loaded layers; its number.
  Result<uint32_t> new_sequence();
  Status free_sequence(uint32_t id);
  Result<model::Sequence*> sequence(uint32_t id);

  /// Fills the hidden states with the embeddings of tokens.
  Status embed(std::span<const uint32_t> tokens, uint32_t position);
  /// Makes room for the hidden states of `tokens` tokens that come from elsewhere.
  Status resize_hidden(uint32_t tokens);
  /// Runs the loaded layers over the hidden states, in place.
  Status run(uint32_t sequence, uint32_t position);
  /// Computes logits() of tokens [first, first + count) of the hidden states.
  Status compute_logits(uint32_t first, uint32_t count);

  [[nodiscard]] model::HiddenStates& hidden() { return hidden_; }
  [[nodiscard]] const std::vector<float>& logits() const { return logits_; }
  [[nodiscard]] const model::ModelConfig& config() const { return config_; }
  [[nodiscard]] uint32_t threads() const { return pool_->threads(); }
  /// Bytes of weights held.
  [[nodiscard]] uint64_t bytes() const;

  /// Most tokens of one pass: keeps every product of a pass's sizes within the module's 32 bits.
  static constexpr uint32_t kMaxPass = 4096;

 private:
  Engine() = default;
  [[nodiscard]] model::StageOptions stage_options(uint32_t first, uint32_t last) const;
  /// Checkpoints of bare models leave the family's prefix out; known once all files are.
  void find_prefix();

  Options options_;
  model::ModelConfig config_;
  std::shared_ptr<ThreadPool> pool_;
  HostSource source_;
  std::unique_ptr<model::Stage> stage_;
  std::unique_ptr<model::Ends> ends_;
  std::map<uint32_t, std::unique_ptr<model::Sequence>> sequences_;
  uint32_t next_sequence_ = 1;
  model::HiddenStates hidden_;
  std::vector<float> logits_;
};

}  // namespace tandem::web
