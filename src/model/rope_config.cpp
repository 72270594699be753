#include "model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "model/families.h"

namespace tandem::model {
namespace {

using nlohmann::json;

constexpr double kTwoPi = 6.283185307179586;

// A number at `key` in [low, high]; `fallback` where it is absent or null.
Result<double> number(const json& object, const char* key, double low, double high,
                      double fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_number() || !(found->get<double>() >= low) || found->get<double>() > high) {
    return invalid(std::string("config.json: rope parameter '") + key +
                   "' is out of its range: " + found->dump().substr(0, 40));
  }
  return found->get<double>();
}

// floor or ceiling without libm's help being needed for exactness: the values are small.
double correction_dim(double rotations, double head_dim, double theta, double context) {
  return head_dim * arithmetic::logarithm(context / (rotations * kTwoPi)) /
         (2.0 * arithmetic::logarithm(theta));
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * arithmetic::logarithm(factor) + 1.0;
}

Result<RopeScaling> scaling_type(const json& scaling) {
  auto type = scaling.find("rope_type");
  if (type == scaling.end()) type = scaling.find("type");
  if (type == scaling.end() || type->is_null()) return RopeScaling::kNone;
  if (type->is_string()) {
    const auto& name = type->get_ref<const std::string&>();
    if (name == "default") return RopeScaling::kNone;
    if (name == "linear") return RopeScaling::kLinear;
    if (name == "dynamic") return RopeScaling::kDynamic;
    if (name == "yarn") return RopeScaling::kYarn;
    if (name == "llama3") return RopeScaling::kLlama3;
  }
  return unsupported("config.json: rope scaling of type " + type->dump().substr(0, 40) +
                     "; known are default, linear, dynamic, yarn and llama3");
}

}  // namespace

Status read_rope(const json& object, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  static const json kEmpty = json::object();
  const json* scaling = &kEmpty;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) continue;
    if (!found->is_object()) {
      return invalid(std::string("config.json: '") + key + "' must be an object");
    }
    if (found->contains("full_attention") || found->contains("sliding_attention")) {
      return unsupported(std::string("config.json: '") + key + "' differs between layers");
    }
    scaling = &*found;
    break;
  }
  TANDEM_ASSIGN(const double outer_theta, number(object, "rope_theta", 1.0001, 1e12, 10000.0));
  TANDEM_ASSIGN(rope.theta, number(*scaling, "rope_theta", 1.0001, 1e12, outer_theta));
  // Only families with a part of each head rotated have a default below 1.
  TANDEM_ASSIGN(const double outer_partial,
                number(object, "partial_rotary_factor", 0, 1, config.family->hybrid ? 0.25 : 1.0));
  TANDEM_ASSIGN(const double partial,
                number(*scaling, "partial_rotary_factor", 0, 1, outer_partial));
  if (partial != 1.0) {
    const auto dimensions = static_cast<uint32_t>(config.head_dim * partial);
    if (!config.family->hybrid || dimensions == 0 || dimensions % 2 != 0) {
      return unsupported("config.json: 'partial_rotary_factor' rotates " +
                         std::to_string(dimensions) + " of a head's " +
                         std::to_string(config.head_dim) + " values; Tandem does not for " +
                         config.architecture);
    }
    rope.dimensions = dimensions;
  }
  TANDEM_ASSIGN(rope.scaling, scaling_type(*scaling));
  if (rope.scaling == RopeScaling::kNone) return {};

  TANDEM_ASSIGN(rope.factor, number(*scaling, "factor", 1.0, 1e6, 0.0));
  TANDEM_ASSIGN(const double original,
                number(*scaling, "original_max_position_embeddings", 1, 1e9, config.context));
  rope.original_context = static_cast<uint32_t>(original);
  if (rope.factor == 0.0) {
    if (rope.scaling != RopeScaling::kYarn) {
      return invalid("config.json: rope scaling needs a 'factor'");
    }
    rope.factor = std::max(1.0, config.context / original);
  }
  if (rope.scaling == RopeScaling::kDynamic) {
    if (config.head_dim < 4) return unsupported("config.json: dynamic rope needs a head_dim of 4");
    const double reach = original * rope.factor;
    config.context = std::max(config.context, static_cast<uint32_t>(std::min(reach, 1e9)));
  }
  TANDEM_ASSIGN(rope.low_freq_factor, number(*scaling, "low_freq_factor", 1e-6, 1e6, 1.0));
  TANDEM_ASSIGN(rope.high_freq_factor, number(*scaling, "high_freq_factor", 1e-6, 1e6, 4.0));
  if (rope.scaling == RopeScaling::kLlama3 && rope.high_freq_factor <= rope.low_freq_factor) {
    return invalid("config.json: 'high_freq_factor' must be over 'low_freq_factor'");
  }
  TANDEM_ASSIGN(rope.beta_fast, number(*scaling, "beta_fast", 1e-6, 1e6, 32.0));
  TANDEM_ASSIGN(rope.beta_slow, number(*scaling, "beta_slow", 1e-6, 1e6, 1.0));
  const auto truncate = scaling->find("truncate");
  if (truncate != scaling->end() && truncate->is_boolean()) rope.truncate = truncate->get<bool>();
  if (rope.scaling == RopeScaling::kYarn) {
    TANDEM_ASSIGN(const double mscale, number(*scaling, "mscale", 0, 100, 0.0));
    TANDEM_ASSIGN(const double mscale_all, number(*scaling, "mscale_all_dim", 0, 100, 0.0));
    const double implied = mscale > 0 && mscale_all > 0 ? yarn_scale(rope.factor, mscale) /
                                                              yarn_scale(rope.factor, mscale_all)
                                                        : yarn_scale(rope.factor, 1.0);
    TANDEM_ASSIGN(rope.attention_factor, number(*scaling, "attention_factor", 1e-3, 1e3, implied));
  }
  return {};
}

Rope::Rope(const ModelConfig& config)
    : config_(config.rope),
      head_dim_(config.rope.dimensions != 0 ? config.rope.dimensions : config.head_dim) {
  if (!config_.enabled) return;
  score_factor_ = config_.attention_factor * config_.attention_factor;
  steps_ = steps(config_.theta);
}

std::vector<uint64_t> Rope::steps(double theta) const {
  const uint32_t pairs = head_dim_ / 2;
  const double dim = head_dim_;
  std::vector<uint64_t> result(pairs);
  double low = 0;
  double high = 0;
  if (config_.scaling == RopeScaling::kYarn) {
    low = correction_dim(config_.beta_fast, dim, theta, config_.original_context);
    high = correction_dim(config_.beta_slow, dim, theta, config_.original_context);
    if (config_.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    if (low == high) high += 0.001;
  }
  for (uint32_t i = 0; i < pairs; ++i) {
    const double plain = arithmetic::inverse_power(theta, 2.0 * i / dim);
    double frequency = plain;
    switch (config_.scaling) {
      case RopeScaling::kNone:
      case RopeScaling::kDynamic:
        break;
      case RopeScaling::kLinear:
        frequency = plain / config_.factor;
        break;
      case RopeScaling::kYarn: {
        const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
        frequency = plain / config_.factor * ramp + plain * (1.0 - ramp);
        break;
      }
      case RopeScaling::kLlama3: {
        // Wavelengths up to context / high_freq_factor stay, those from context / low_freq_factor
        // on are divided, and between them the two are blended.
        const double wavelength = kTwoPi / plain;
        const double context = config_.original_context;
        if (wavelength > context / config_.low_freq_factor) {
          frequency = plain / config_.factor;
        } else if (wavelength >= context / config_.high_freq_factor) {
          const double smooth = (context / wavelength - config_.low_freq_factor) /
                                (config_.high_freq_factor - config_.low_freq_factor);
          frequency = (1.0 - smooth) * plain / config_.factor + smooth * plain;
        }
        break;
      }
    }
    result[i] = arithmetic::phase_step(frequency);
  }
  return result;
}

void Rope::rotations(uint32_t position, uint32_t tokens,
                     std::vector<arithmetic::Rotation>& out) const {
  const uint32_t pairs = head_dim_ / 2;
  out.reserve(out.size() + size_t{tokens} * pairs);
  std::vector<uint64_t> own;
  for (uint32_t t = 0; t < tokens; ++t) {
    const uint64_t p = uint64_t{position} + t;
    const std::vector<uint64_t>* table = &steps_;
    if (config_.scaling == RopeScaling::kDynamic && p + 1 > config_.original_context) {
      // As in token-by-token decoding: the base that a sequence ending at this position has, so
      // that a position's rotation does not depend on how the passes are cut.
      const double dim = head_dim_;
      const double stretch =
          config_.factor * static_cast<double>(p + 1) / config_.original_context -
          (config_.factor - 1.0);
      // theta * stretch^(dim / (dim - 2)), the power as 1 / inverse_power.
      own = steps(config_.theta / arithmetic::inverse_power(stretch, dim / (dim - 2.0)));
      table = &own;
    }
    for (uint32_t i = 0; i < pairs; ++i) out.push_back(arithmetic::rotation((*table)[i] * p));
  }
}

}  // namespace tandem::model
