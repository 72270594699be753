// What a config.json says about single layers, and the constants that scale a family's activations.
#include <algorithm>
#include <cmath>

#include "model/config_json.h"
#include "model/families.h"

namespace tandem::model {
namespace {

using nlohmann::json;
using Window = Family::Window;

constexpr uint32_t kMaxWindow = 1U << 30;

// layer_types into windows; false if the key is not there.
Result<bool> read_layer_types(const json& object, uint32_t window, ModelConfig& config) {
  const auto types = object.find("layer_types");
  if (types == object.end() || !types->is_array()) return false;
  if (types->size() != config.layers) {
    return invalid("config.json: 'layer_types' names " + std::to_string(types->size()) +
                   " layers, the model has " + std::to_string(config.layers));
  }
  for (uint32_t i = 0; i < config.layers; ++i) {
    const json& type = (*types)[i];
    if (type == "sliding_attention") {
      if (window == 0) {
        return invalid("config.json: layer " + std::to_string(i) +
                       " is of type \"sliding_attention\", but there is no 'sliding_window'");
      }
      config.window[i] = window;
    } else if (type != "full_attention") {
      return unsupported("config.json: layer " + std::to_string(i) + " is of type " +
                         type.dump().substr(0, 40));
    }
  }
  return true;
}

Result<uint32_t> window_size(const json& object, const Family& family) {
  const auto given = object.find("sliding_window");
  if (given != object.end() && given->is_null()) return uint32_t{0};
  if (given == object.end() && family.defaults.window == 0) return uint32_t{0};
  return read_count(object, "sliding_window", kMaxWindow, family.defaults.window);
}

Status read_windows(const json& object, ModelConfig& config) {
  const Family& family = *config.family;
  config.window.assign(config.layers, 0);
  if (family.window == Window::kNone) return {};
  TANDEM_ASSIGN(const bool opted_in, read_flag(object, "use_sliding_window", false));
  const bool opt_in = family.window == Window::kOptIn || family.window == Window::kOptInAll ||
                      family.window == Window::kWithoutRope;
  if (!opted_in && opt_in) return {};
  TANDEM_ASSIGN(const uint32_t window, window_size(object, family));
  if (window == 0 && family.window != Window::kPattern) return {};
  TANDEM_ASSIGN(const bool listed, read_layer_types(object, window, config));
  if (listed) return {};
  switch (family.window) {
    case Window::kNone:
      break;
    case Window::kAlways:
    case Window::kOptInAll:
      std::fill(config.window.begin(), config.window.end(), window);
      break;
    case Window::kOptIn: {
      TANDEM_ASSIGN(const uint32_t first, read_count(object, "max_window_layers", 1024, 28));
      for (uint32_t i = first; i < config.layers; ++i) config.window[i] = window;
      break;
    }
    case Window::kPattern: {
      const bool kept = has_value(object, "_sliding_window_pattern");
      TANDEM_ASSIGN(const uint32_t pattern,
                    read_count(object, kept ? "_sliding_window_pattern" : "sliding_window_pattern",
                               1U << 20, 6));
      if (window == 0) return invalid("config.json: 'sliding_window' is missing");
      for (uint32_t i = 0; i < config.layers; ++i) {
        if ((i + 1) % pattern != 0) config.window[i] = window;
      }
      break;
    }
    case Window::kAlternating:
      for (uint32_t i = 0; i < config.layers; i += 2) config.window[i] = window;
      break;
    case Window::kWithoutRope:
      for (uint32_t i = 0; i < config.layers; ++i) {
        if (config.layer_rope[i] == LayerRope::kNone) config.window[i] = window;
      }
      break;
  }
  return {};
}

Status read_layers_without_rope(const json& object, ModelConfig& config) {
  if (!has_value(object, "no_rope_layers")) {
    TANDEM_ASSIGN(const uint32_t interval,
                  read_count(object, "no_rope_layer_interval", 1U << 20, 4));
    for (uint32_t i = 0; i < config.layers; ++i) {
      if ((i + 1) % interval == 0) config.layer_rope[i] = LayerRope::kNone;
    }
    return {};
  }
  const json& list = object["no_rope_layers"];
  if (!list.is_array() || list.size() < config.layers) {
    return invalid("config.json: 'no_rope_layers' must list " + std::to_string(config.layers) +
                   " layers");
  }
  for (uint32_t i = 0; i < config.layers; ++i) {
    const json& rotated = list[i];
    const bool known = rotated.is_boolean() || rotated == 0 || rotated == 1;
    if (!known) {
      return invalid("config.json: an entry of 'no_rope_layers' is " +
                     rotated.dump().substr(0, 40) + ", not 0 or 1");
    }
    const bool turns = rotated.is_boolean() ? rotated.get<bool>() : rotated == 1;
    if (!turns) config.layer_rope[i] = LayerRope::kNone;
  }
  return {};
}

// Nearest value, ties to even, of a type with `bits` bits of mantissa after the leading one.
float rounded_to(float x, int bits) {
  const float unit = std::ldexp(1.0F, std::ilogb(x) - bits);
  return std::nearbyint(x / unit) * unit;
}

}  // namespace

Status read_layer_kinds(const json& object, ModelConfig& config) {
  const Family& family = *config.family;
  config.layer_rope.assign(config.layers, family.rotary ? LayerRope::kGlobal : LayerRope::kNone);
  if (family.layers_without_rope) TANDEM_TRY(read_layers_without_rope(object, config));
  TANDEM_TRY(read_windows(object, config));
  if (family.local_theta == 0) return {};
  for (uint32_t i = 0; i < config.layers; ++i) {
    if (config.window[i] != 0) config.layer_rope[i] = LayerRope::kLocal;
  }
  return {};
}

Status read_multipliers(const json& object, std::string_view dtype, ModelConfig& config) {
  const Family& family = *config.family;
  config.query_scalar = config.head_dim;
  if (family.query_scalar) {
    TANDEM_ASSIGN(config.query_scalar,
                  read_number(object, "query_pre_attn_scalar", 1e-6, 1e9, 256.0));
  }
  if (family.scaled_embedding) {
    // Exactly rounded by IEEE 754, so the same on every machine.
    config.embedding_scale = static_cast<float>(__builtin_sqrt(config.hidden_size));
    // transformers keeps the factor in the type that it holds the weights in.
    if (dtype == "bfloat16") config.embedding_scale = rounded_to(config.embedding_scale, 7);
    if (dtype == "float16") config.embedding_scale = rounded_to(config.embedding_scale, 10);
  }
  if (!family.multipliers) return {};
  constexpr double kLargest = 1e6;
  constexpr double kSmallest = 1e-6;
  TANDEM_ASSIGN(const double embedding,
                read_number(object, "embedding_multiplier", kSmallest, kLargest, 1.0));
  TANDEM_ASSIGN(const double residual,
                read_number(object, "residual_multiplier", kSmallest, kLargest, 1.0));
  TANDEM_ASSIGN(config.attention_multiplier,
                read_number(object, "attention_multiplier", kSmallest, kLargest, 1.0));
  TANDEM_ASSIGN(const double logits,
                read_number(object, "logits_scaling", kSmallest, kLargest, 1.0));
  config.embedding_scale = static_cast<float>(embedding);
  config.residual_scale = static_cast<float>(residual);
  config.logit_scale = static_cast<float>(1.0 / logits);
  return {};
}

}  // namespace tandem::model
