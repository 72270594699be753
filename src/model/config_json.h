// Values of a config.json with their ranges, for the files that read one. Every error is kInvalid
// and names the key. A key that is absent or null has its fallback.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/config.h"

namespace tandem::model {

inline std::string key_name(std::string_view text) {
  return "'" + std::string(text) + "'";
}

/// True if `key` is there and not null.
inline bool has_value(const nlohmann::json& object, std::string_view key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

/// An integer from 1 to `limit`. A fallback of 0: the key must be there.
Result<uint32_t> read_count(const nlohmann::json& object, std::string_view key, uint32_t limit,
                            uint32_t fallback);
Result<bool> read_flag(const nlohmann::json& object, std::string_view key, bool fallback);
/// A number in [low, high].
Result<double> read_number(const nlohmann::json& object, std::string_view key, double low,
                           double high, double fallback);

/// Which layers have a sliding window, and which rotation: `window` and `layer_rope` of `config`,
/// whose sizes are known.
Status read_layer_kinds(const nlohmann::json& object, ModelConfig& config);
/// Which layers are gated delta nets, and their shape.
Status read_hybrid(const nlohmann::json& object, ModelConfig& config);
/// What embedding, scores, residual stream and logits are multiplied by. `dtype` is the
/// checkpoint's: "bfloat16", …, or empty.
Status read_multipliers(const nlohmann::json& object, std::string_view dtype, ModelConfig& config);

}  // namespace tandem::model
