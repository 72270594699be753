// A model on this machine's disk: found by what the user calls it, opened, and its text side read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "text/chat.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"

namespace tandem::cli {

/// This program's file.
std::filesystem::path executable();

/// The folder or GGUF file of -m: as given, or a name beside the default model; without -m
/// $TANDEM_MODEL, or models/storyteller beside the executable or in a folder above it. Error:
/// kNotFound.
Result<std::filesystem::path> find_model(const std::string& given);

/// What workers that fetch the model themselves are told that it is called: as it was pulled, else
/// its folder's name, as a hub may serve it.
std::string origin_of(const weights::Checkpoint& checkpoint);

/// A model's folder, opened. No weights are read yet.
struct Model {
  std::unique_ptr<weights::Checkpoint> checkpoint;
  model::ModelConfig config;

  static Result<Model> open(const std::string& given);
};

/// The tokenizer of a folder or GGUF file.
Result<text::Tokenizer> open_tokenizer(const std::filesystem::path& path);

/// The model's text side.
struct Text {
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat;
  text::GenerationConfig generation;

  static Result<Text> open(const weights::Checkpoint& checkpoint);
  static Result<Text> open(const std::filesystem::path& folder);
  /// eos ids without those outside [0, vocab).
  [[nodiscard]] std::vector<uint32_t> end_ids(uint32_t vocab) const;
};

}  // namespace tandem::cli
