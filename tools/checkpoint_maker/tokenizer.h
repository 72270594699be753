// A made-up tokenizer of any vocabulary size that nevertheless works: byte-level BPE in which every
// id decodes and every text encodes.
#pragma once

#include <nlohmann/json.hpp>

#include "checkpoint_maker/shapes.h"

namespace tandem::tools {

/// tokenizer.json: the shape's special tokens at their ids; on the other ids, in rising order, the
/// 256 bytes and then merges of two, three and four letters. At least 256 + specials ids.
nlohmann::json tokenizer_json(const Shape& shape);

/// tokenizer_config.json, with a ChatML template.
nlohmann::ordered_json tokenizer_config_json(const Shape& shape);

/// generation_config.json.
nlohmann::ordered_json generation_config_json(const Shape& shape);

}  // namespace tandem::tools
