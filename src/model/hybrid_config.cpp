// Layers, shapes and settings of gated delta nets.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "arithmetic/format.h"
#include "model/config_json.h"
#include "model/families.h"

namespace tandem::model {
namespace {

using nlohmann::json;

constexpr uint32_t kMaxLayers = 1024;

}  // namespace

Status read_hybrid(const json& object, ModelConfig& config) {
  config.kinds.assign(config.layers, LayerKind::kAttention);
  if (!config.family->hybrid) return {};
  config.gated_attention = true;
  TANDEM_ASSIGN(const bool gate, read_flag(object, "attn_output_gate", true));
  if (!gate) return unsupported("config.json: 'attn_output_gate' is false; Tandem computes true");
  const auto types = object.find("layer_types");
  if (types != object.end() && !types->is_null()) {
    if (!types->is_array() || types->size() != config.layers) {
      return invalid("config.json: 'layer_types' must be a list of " +
                     std::to_string(config.layers) + " layers' types");
    }
    for (uint32_t i = 0; i < config.layers; ++i) {
      const json& type = (*types)[i];
      if (type == "linear_attention") {
        config.kinds[i] = LayerKind::kDeltaNet;
      } else if (type != "full_attention") {
        return unsupported("config.json: layer " + std::to_string(i) + " is of type " +
                           type.dump().substr(0, 40));
      }
    }
  } else {
    TANDEM_ASSIGN(const uint32_t interval,
                  read_count(object, "full_attention_interval", kMaxLayers, 4));
    for (uint32_t i = 0; i < config.layers; ++i) {
      if ((i + 1) % interval != 0) config.kinds[i] = LayerKind::kDeltaNet;
    }
  }
  kernels::DeltaShape& delta = config.delta;
  TANDEM_ASSIGN(delta.key_heads, read_count(object, "linear_num_key_heads", 4096, 16));
  TANDEM_ASSIGN(delta.value_heads, read_count(object, "linear_num_value_heads", 4096, 32));
  TANDEM_ASSIGN(delta.key_dim,
                read_count(object, "linear_key_head_dim", arithmetic::kMaxHeadDim, 128));
  TANDEM_ASSIGN(delta.value_dim,
                read_count(object, "linear_value_head_dim", arithmetic::kMaxHeadDim, 128));
  TANDEM_ASSIGN(delta.kernel, read_count(object, "linear_conv_kernel_dim", 8, 4));
  if (delta.value_heads % delta.key_heads != 0 || delta.key_dim % 16 != 0 ||
      delta.value_dim % 16 != 0 || delta.kernel < 2) {
    return unsupported("config.json: a gated delta net of " + std::to_string(delta.key_heads) +
                       " key heads of " + std::to_string(delta.key_dim) + ", " +
                       std::to_string(delta.value_heads) + " value heads of " +
                       std::to_string(delta.value_dim) + " and a convolution over " +
                       std::to_string(delta.kernel) +
                       " positions; heads must share evenly, their sizes be multiples of 16, and "
                       "the convolution see 2 to 8 positions");
  }
  if (delta.columns() > arithmetic::kMaxRow ||
      2 * config.heads * config.head_dim > arithmetic::kMaxRow) {
    return unsupported(
        "config.json: projections of " +
        std::to_string(std::max(delta.columns(), 2 * config.heads * config.head_dim)) +
        " columns are wider than " + std::to_string(arithmetic::kMaxRow));
  }
  return {};
}

}  // namespace tandem::model
