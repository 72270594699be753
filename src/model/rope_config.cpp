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
    if (name == "longrope" || name == "su") return RopeScaling::kLongRope;
  }
  return unsupported("config.json: rope scaling of type " + type->dump().substr(0, 40) +
                     "; known are default, linear, dynamic, yarn, llama3 and longrope");
}

// A list of positive numbers, one a rotated pair.
Result<std::vector<double>> factors(const json& scaling, const char* key, size_t pairs) {
  const auto found = scaling.find(key);
  std::vector<double> result;
  if (found != scaling.end() && found->is_array() && found->size() == pairs) {
    for (const json& factor : *found) {
      if (!factor.is_number() || !(factor.get<double>() >= 0.2) || factor.get<double>() > 1e6)
        break;
      result.push_back(factor.get<double>());
    }
  }
  if (result.size() == pairs) return result;
  return invalid(std::string("config.json: rope parameter '") + key + "' must list " +
                 std::to_string(pairs) + " numbers from 0.2 to 1000000");
}

Status read_yarn(const json& scaling, RopeConfig& rope) {
  TANDEM_ASSIGN(rope.beta_fast, number(scaling, "beta_fast", 1e-6, 1e6, 32.0));
  TANDEM_ASSIGN(rope.beta_slow, number(scaling, "beta_slow", 1e-6, 1e6, 1.0));
  const auto truncate = scaling.find("truncate");
  if (truncate != scaling.end() && truncate->is_boolean()) rope.truncate = truncate->get<bool>();
  TANDEM_ASSIGN(const double mscale, number(scaling, "mscale", 0, 100, 0.0));
  TANDEM_ASSIGN(const double mscale_all, number(scaling, "mscale_all_dim", 0, 100, 0.0));
  const double implied = mscale > 0 && mscale_all > 0
                             ? yarn_scale(rope.factor, mscale) / yarn_scale(rope.factor, mscale_all)
                             : yarn_scale(rope.factor, 1.0);
  TANDEM_ASSIGN(rope.attention_factor, number(scaling, "attention_factor", 1e-3, 1e3, implied));
  return {};
}

Status read_longrope(const json& scaling, size_t pairs, RopeConfig& rope) {
  TANDEM_ASSIGN(rope.short_factor, factors(scaling, "short_factor", pairs));
  TANDEM_ASSIGN(rope.long_factor, factors(scaling, "long_factor", pairs));
  double implied = 1.0;
  if (rope.factor > 1.0 && rope.original_context > 1) {
    const double more = arithmetic::logarithm(rope.factor);
    // Exactly rounded by IEEE 754, so the same on every machine.
    implied = __builtin_sqrt(1.0 + more / arithmetic::logarithm(rope.original_context));
  }
  TANDEM_ASSIGN(rope.attention_factor, number(scaling, "attention_factor", 1e-3, 1e3, implied));
  return {};
}

// The channels of a head that `scaling` or the config itself says are rotated.
Status read_channels(const json& scaling, const json& object, const ModelConfig& config,
                     RopeConfig& rope) {
  TANDEM_ASSIGN(const double outer, number(object, "partial_rotary_factor", 0, 1, 1.0));
  TANDEM_ASSIGN(const double partial, number(scaling, "partial_rotary_factor", 0, 1, outer));
  rope.channels = static_cast<uint32_t>(config.head_dim * partial);
  if (partial == 1.0) return {};
  if (!config.family->partial_rotary) {
    return unsupported("config.json: 'partial_rotary_factor' is not 1; Tandem rotates whole heads");
  }
  if (rope.channels == 0 || rope.channels % 2 != 0) {
    return invalid("config.json: 'partial_rotary_factor' rotates " + std::to_string(rope.channels) +
                   " channels of a head; it must be an even number");
  }
  return {};
}

// One rotation. `scaling` is its object of parameters, `object` the config around it.
Status read_one(const json& scaling, const json& object, double theta, ModelConfig& config,
                RopeConfig& rope) {
  rope.enabled = true;
  TANDEM_ASSIGN(rope.theta, number(scaling, "rope_theta", 1.0001, 1e12, theta));
  TANDEM_TRY(read_channels(scaling, object, config, rope));
  TANDEM_ASSIGN(rope.scaling, scaling_type(scaling));
  const uint32_t pairs = rope.channels / 2;
  // Phi-3's first configs say "yarn" where they mean its short and long factors.
  if (rope.scaling == RopeScaling::kYarn && config.family->partial_rotary) {
    rope.scaling = RopeScaling::kLongRope;
  }
  if (rope.scaling == RopeScaling::kNone) return {};

  TANDEM_ASSIGN(rope.factor, number(scaling, "factor", 1.0, 1e6, 0.0));
  const uint32_t own = config.family->defaults.original_context;
  TANDEM_ASSIGN(const double inner, number(scaling, "original_max_position_embeddings", 1, 1e9,
                                           own != 0 ? own : config.context));
  // Beside the parameters rather than among them it counts first, as in transformers.
  const bool beside = rope.scaling != RopeScaling::kLinear && rope.scaling != RopeScaling::kDynamic;
  TANDEM_ASSIGN(const double outer,
                number(object, "original_max_position_embeddings", 1, 1e9, inner));
  const double original = beside ? outer : inner;
  rope.original_context = static_cast<uint32_t>(original);
  if (rope.factor == 0.0) {
    if (rope.scaling != RopeScaling::kYarn && rope.scaling != RopeScaling::kLongRope) {
      return invalid("config.json: rope scaling needs a 'factor'");
    }
    rope.factor = std::max(1.0, config.context / original);
  }
  if (rope.scaling == RopeScaling::kDynamic) {
    if (config.head_dim < 4) return unsupported("config.json: dynamic rope needs a head_dim of 4");
    const double reach = original * rope.factor;
    config.context = std::max(config.context, static_cast<uint32_t>(std::min(reach, 1e9)));
  }
  TANDEM_ASSIGN(rope.low_freq_factor, number(scaling, "low_freq_factor", 1e-6, 1e6, 1.0));
  TANDEM_ASSIGN(rope.high_freq_factor, number(scaling, "high_freq_factor", 1e-6, 1e6, 4.0));
  if (rope.scaling == RopeScaling::kLlama3 && rope.high_freq_factor <= rope.low_freq_factor) {
    return invalid("config.json: 'high_freq_factor' must be over 'low_freq_factor'");
  }
  if (rope.scaling == RopeScaling::kYarn) return read_yarn(scaling, rope);
  if (rope.scaling == RopeScaling::kLongRope) return read_longrope(scaling, pairs, rope);
  return {};
}

bool differs_between_layers(const json& parameters) {
  return parameters.contains("full_attention") || parameters.contains("sliding_attention");
}

// The object at `key`, or an empty one.
Result<json> object_at(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return json::object();
  if (!found->is_object()) {
    return invalid(std::string("config.json: '") + key + "' must be an object");
  }
  return *found;
}

// Full and sliding layers: newer configs have an object for each kind of layer, older ones a
// `rope_scaling` for full layers alone and a base for each kind.
Status read_both(const json& object, double theta, ModelConfig& config) {
  TANDEM_ASSIGN(json kinds, object_at(object, "rope_parameters"));
  TANDEM_ASSIGN(const json scaling, object_at(object, "rope_scaling"));
  if (!kinds.empty() && !differs_between_layers(kinds)) {
    return unsupported("config.json: 'rope_parameters' of " + config.architecture +
                       " must have 'full_attention' and 'sliding_attention'");
  }
  if (differs_between_layers(scaling)) {
    if (!kinds.empty()) return invalid("config.json: 'rope_parameters' and 'rope_scaling' differ");
    kinds = scaling;
  }
  TANDEM_ASSIGN(json full, object_at(kinds, "full_attention"));
  TANDEM_ASSIGN(const json sliding, object_at(kinds, "sliding_attention"));
  if (!differs_between_layers(scaling)) full.update(scaling);
  TANDEM_ASSIGN(const double local,
                number(object, "rope_local_base_freq", 1.0001, 1e12, config.family->local_theta));
  TANDEM_TRY(read_one(full, object, theta, config, config.rope));
  return read_one(sliding, object, local, config, config.local_rope);
}

}  // namespace

Status read_rope(const json& object, ModelConfig& config) {
  TANDEM_ASSIGN(const double theta,
                number(object, "rope_theta", 1.0001, 1e12, config.family->defaults.theta));
  config.local_rope.enabled = false;
  if (config.family->local_theta != 0) return read_both(object, theta, config);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!object.contains(key) || object[key].is_null()) continue;
    TANDEM_ASSIGN(const json parameters, object_at(object, key));
    if (differs_between_layers(parameters)) {
      return unsupported(std::string("config.json: '") + key + "' differs between layers");
    }
    return read_one(parameters, object, theta, config, config.rope);
  }
  static const json kYarn = {{"rope_type", "yarn"},
                             {"factor", 32.0},
                             {"truncate", false},
                             {"original_max_position_embeddings", 4096}};
  const json usual = config.family->yarn_by_default ? kYarn : json::object();
  return read_one(usual, object, theta, config, config.rope);
}

Rope::Rope(const RopeConfig& config, uint32_t head_dim, bool far)
    : config_(config),
      head_dim_(head_dim),
      channels_(config.channels == 0 ? head_dim : config.channels) {
  if (!config_.enabled) return;
  score_factor_ = config_.attention_factor * config_.attention_factor;
  steps_ = steps(config_.theta);
  if (config_.scaling != RopeScaling::kLongRope) return;
  const std::vector<double>& factors = far ? config_.long_factor : config_.short_factor;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / channels_;
    const double plain = arithmetic::inverse_power(config_.theta, exponent);
    steps_[i] = arithmetic::phase_step(plain / factors[i]);
  }
}

kernels::Rotary Rope::rotary(uint32_t table) const {
  kernels::Rotary rotary{config_.enabled, table, channels_, 1.0F};
  // Scores carry the factor of rotated channels; it is taken from the others.
  if (channels_ != head_dim_) rotary.rest = static_cast<float>(1.0 / config_.attention_factor);
  return rotary;
}

std::vector<uint64_t> Rope::steps(double theta) const {
  const uint32_t pairs = channels_ / 2;
  const double dim = channels_;
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
      case RopeScaling::kLongRope:
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
  const uint32_t pairs = channels_ / 2;
  out.reserve(out.size() + size_t{tokens} * (head_dim_ / 2));
  std::vector<uint64_t> own;
  for (uint32_t t = 0; t < tokens; ++t) {
    const uint64_t p = uint64_t{position} + t;
    const std::vector<uint64_t>* table = &steps_;
    if (config_.scaling == RopeScaling::kDynamic && p + 1 > config_.original_context) {
      // As in token-by-token decoding: the base that a sequence ending at this position has, so
      // that a position's rotation does not depend on how the passes are cut.
      const double dim = channels_;
      const double stretch =
          config_.factor * static_cast<double>(p + 1) / config_.original_context -
          (config_.factor - 1.0);
      // theta * stretch^(dim / (dim - 2)), the power as 1 / inverse_power.
      own = steps(config_.theta / arithmetic::inverse_power(stretch, dim / (dim - 2.0)));
      table = &own;
    }
    for (uint32_t i = 0; i < pairs; ++i) out.push_back(arithmetic::rotation((*table)[i] * p));
    out.resize(out.size() + head_dim_ / 2 - pairs);
  }
}

}  // namespace tandem::model
