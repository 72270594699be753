// The shapes of known models: what their config.json says and which tensors they hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "weights/source.h"

namespace tandem::tools {

enum class Family { kLlama, kMistral, kQwen2, kQwen3, kGpt2, kQwen3Moe, kHybrid };

/// Gated delta nets of a hybrid.
struct DeltaNet {
  uint64_t key_heads = 0;
  uint64_t value_heads = 0;
  uint64_t key_dim = 128;
  uint64_t value_dim = 128;
  uint64_t kernel = 4;
};

/// One model, with the values of its published config.json.
struct Shape {
  std::string_view name;
  Family family = Family::kLlama;
  uint64_t layers = 0;
  uint64_t hidden = 0;
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_dim = 0;
  uint64_t intermediate = 0;
  uint64_t vocab = 0;
  uint64_t context = 0;
  double rope_theta = 10000.0;
  double eps = 1e-5;
  bool tied = false;
  double rope_factor = 0;                      ///< llama3 scaling; 0: none
  uint64_t rope_context = 8192;                ///< llama3 scaling: context before it
  uint64_t sliding_window = 0;                 ///< 0: none
  std::optional<uint32_t> bos = std::nullopt;  ///< put before a prompt
  uint32_t end_of_text = 0;                    ///< id of <|endoftext|>
  uint32_t im_start = 1;
  uint32_t im_end = 2;  ///< ends an answer
  std::vector<uint32_t> eos = {2};
  uint64_t experts = 0;  ///< of a layer; 0: none
  uint64_t chosen = 0;   ///< by a token
  uint64_t width = 0;    ///< intermediate size of an expert
  uint64_t sparse_step = 1;
  DeltaNet delta = {};   ///< of hybrids
  bool wrapped = false;  ///< hybrids: within a model that also sees
};

/// All shapes, in the order of their families.
const std::vector<Shape>& shapes();
const Shape* find_shape(std::string_view name);

/// config.json in the form in which these models were published (transformers 4).
nlohmann::ordered_json config_json(const Shape& shape);

/// How a tensor's values are drawn.
struct Values {
  double mean = 0;
  double deviation = 0;
};

struct MadeTensor {
  weights::TensorInfo info;
  Values values;
};

/// Every tensor in the order of the forward pass, as BF16. Matrices are scaled so that a random
/// model's activations keep the size of about 1 through all layers.
std::vector<MadeTensor> tensors(const Shape& shape);

}  // namespace tandem::tools
