// A mixture of experts: what config.json and the names of a checkpoint's tensors say of it.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.h"
#include "model/config.h"

namespace tandem::model {

/// True for keys that families with experts read and others refuse.
bool is_expert_key(std::string_view key);

/// True if `key` is a quantization_config that says MXFP4, in a family whose experts may be so.
bool is_mxfp4(const Family& family, std::string_view key, const nlohmann::json& object);

/// Reads config.moe as the family's ExpertRules say; does nothing for a family without. Values that
/// nothing computes are refused by name.
Status read_experts(const nlohmann::json& object, ModelConfig& config);

/// Sets config.moe.layout by the tensors that there are.
void resolve_experts(ModelConfig& config, const std::function<bool(std::string_view)>& has);

}  // namespace tandem::model
