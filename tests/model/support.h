// Reference models, opened and run, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/stage.h"
#include "weights/checkpoint.h"

namespace tandem::model {

struct Files {
  std::unique_ptr<weights::Checkpoint> checkpoint;
  ModelConfig config;
};

inline std::filesystem::path oracle_folder() {
  return std::string(TANDEM_SOURCE_DIR) + "/tests/data/oracle";
}

/// A model's folder or GGUF file.
inline Files open_path(const std::filesystem::path& path) {
  Files files;
  auto checkpoint = weights::Checkpoint::open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  files.checkpoint = std::move(*checkpoint);
  auto config = parse_config(files.checkpoint->config_json());
  EXPECT_TRUE(config.ok()) << config.error().message;
  files.config = *config;
  resolve_prefix(files.config, [&](std::string_view tensor) {
    return files.checkpoint->find(tensor) != nullptr;
  });
  return files;
}

inline Files open(const std::string& name) {
  return open_path(oracle_folder() / name);
}

inline std::vector<uint32_t> test_tokens(const ModelConfig& config, uint32_t count) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back((i * 7919U + 13U) % config.vocab);
  return tokens;
}

inline StageOptions with(uint32_t threads, Isa isa) {
  StageOptions options;
  options.threads = threads;
  options.isa = isa;
  return options;
}

/// True if this machine runs the set.
inline bool available(Isa isa) {
  return kernels::make_cpu_backend(name(isa), std::make_shared<ThreadPool>(1)).ok();
}

/// A whole model on one stage.
struct Loaded {
  std::unique_ptr<Stage> stage;
  std::unique_ptr<Ends> ends;

  /// Logits of all tokens, which follow what the sequence holds.
  std::vector<float> logits(Sequence& sequence, std::span<const uint32_t> tokens) {
    auto hidden = ends->embed(tokens, sequence.length());
    EXPECT_TRUE(hidden.ok()) << hidden.error().message;
    const Status status = stage->run(sequence, sequence.length(), *hidden);
    EXPECT_TRUE(status.ok()) << status.error().message;
    std::vector<float> result;
    EXPECT_TRUE(ends->logits(*hidden, 0, hidden->tokens(), result).ok());
    return result;
  }
  std::vector<float> last_logits(Sequence& sequence, std::span<const uint32_t> tokens) {
    const std::vector<float> all = logits(sequence, tokens);
    return {all.end() - static_cast<ptrdiff_t>(all.size() / tokens.size()), all.end()};
  }
};

inline Loaded load(const ModelConfig& config, weights::TensorSource& source, StageOptions options) {
  options.first_layer = 0;
  options.last_layer = config.layers;
  if (options.pool == nullptr) options.pool = std::make_shared<ThreadPool>(options.threads);
  Loaded loaded;
  auto stage = Stage::load(config, options, source, {});
  EXPECT_TRUE(stage.ok()) << stage.error().message;
  loaded.stage = std::move(*stage);
  auto ends = Ends::load(config, options, source, {});
  EXPECT_TRUE(ends.ok()) << ends.error().message;
  loaded.ends = std::move(*ends);
  return loaded;
}

inline Loaded load(Files& files, StageOptions options) {
  return load(files.config, *files.checkpoint, std::move(options));
}

/// Logits of `tokens` with the layers cut at `bounds` (0 first, the number of layers last).
inline std::vector<float> run_cut(Files& files, StageOptions options,
                                  const std::vector<uint32_t>& bounds,
                                  const std::vector<uint32_t>& tokens) {
  options.pool = std::make_shared<ThreadPool>(options.threads);
  auto ends = Ends::load(files.config, options, *files.checkpoint, {});
  EXPECT_TRUE(ends.ok()) << ends.error().message;
  HiddenStates hidden = *(*ends)->embed(tokens, 0);
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    options.first_layer = bounds[i];
    options.last_layer = bounds[i + 1];
    auto stage = Stage::load(files.config, options, *files.checkpoint, {});
    EXPECT_TRUE(stage.ok()) << stage.error().message;
    auto sequence = (*stage)->new_sequence();
    const Status status = (*stage)->run(*sequence, 0, hidden);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  std::vector<float> logits;
  EXPECT_TRUE((*ends)->logits(hidden, 0, hidden.tokens(), logits).ok());
  return logits;
}

}  // namespace tandem::model
