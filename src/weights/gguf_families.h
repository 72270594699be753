// What llama.cpp's converter makes of each family: architecture names, keys and tensor names of a
// GGUF file against those of the config.json and the safetensors that it was made from. Adding a
// family that a description in model/families.cpp covers is adding a row here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "base/result.h"
#include "weights/gguf.h"

namespace tandem::weights {

/// What the converter did to a tensor beside naming it, undone when it is read.
enum class GgufChange : uint8_t {
  kNone,
  kPairedQuery,    ///< rows of a query head reordered so that rotary pairs are neighbours
  kPairedKey,      ///< the same for key heads
  kPlusOne,        ///< 1 added (Gemma's norms)
  kTransposed,     ///< the model's description wants it input-major (GPT-2)
  kExperts,        ///< one tensor [experts, rows, columns] instead of one an expert
  kPairedExperts,  ///< gate and up of experts, whose rows alternate in the model (gpt-oss)
  kValueHeads,     ///< a delta net's value heads (rows) in another order
  kMixed,          ///< query and key heads as they are, then value heads in another order
  kValueColumns,   ///< the same of columns
  kLogarithm,      ///< value heads in another order, each the negative exponential (A_log)
  kOneRow,         ///< a vector that is a matrix of one row
};

/// A tensor's name without layer, ".weight" and ".bias"; or, where both don't have the same ending,
/// with it.
struct GgufTensorRow {
  std::string_view gguf;   ///< "attn_q" of "blk.0.attn_q.weight"
  std::string_view model;  ///< "self_attn.q_proj"; with kExperts "%" stands for the expert's number
  GgufChange change = GgufChange::kNone;
};

/// A key below "<architecture>." and the config.json key of the same meaning. Integers, numbers and
/// booleans keep their value.
struct GgufKeyRow {
  std::string_view gguf;
  std::string_view config;
};

struct GgufFamily {
  std::string_view gguf;          ///< value of general.architecture
  std::string_view architecture;  ///< of config.json
  std::string_view layers = "model.layers.";
  std::span<const GgufKeyRow> keys;
  std::span<const GgufTensorRow> globals;  ///< outside layers, with the model's prefix
  std::span<const GgufTensorRow> tensors;  ///< in layers
  /// What only this family needs in its config (gguf_finish.h); null: nothing. Called last.
  Status (*finish)(const GgufHeader& header, nlohmann::ordered_json& config) = nullptr;
};

/// The description of a file's architecture. A file of "llama" with experts is Mixtral, one with a
/// sliding window Mistral; of gpt-oss it counts whether experts are MXFP4. Error: kUnsupported,
/// names the architecture and those that are known.
Result<const GgufFamily*> find_gguf_family(const GgufHeader& header);

}  // namespace tandem::weights
