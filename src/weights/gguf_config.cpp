// A config.json from a GGUF file's metadata.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "weights/gguf_model.h"
#include "weights/printable.h"

namespace tandem::weights {
namespace {

using Json = nlohmann::ordered_json;

// Keys of an architecture that are read here by name, or say nothing that the answer depends on.
constexpr std::array<std::string_view, 28> kRead{
    "vocab_size",
    "tensor_data_layout",
    "attention.value_length",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.freq_base_swa",
    "attention.sliding_window_pattern",
    "attention.recurrent_layers",
    "feed_forward_length",
    "nextn_predict_layers",
    "rope.dimension_sections",
    "ssm.inner_size",
    "expert_count",
    "expert_used_count",
    "use_parallel_residual",
    "embedding_length_out",
};

/// A number as it was written before it became a binary32: 1e-05 instead of 9.999999747378752e-06.
double decimal(double value) {
  const auto single = static_cast<float>(value);
  if (static_cast<double>(single) != value) return value;
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), single);
  double result = value;
  std::from_chars(text.data(), end.ptr, result);
  return result;
}

class ConfigMaker {
 public:
  ConfigMaker(const GgufHeader& header, const GgufFamily& family)
      : header_(header), family_(family) {}

  Result<std::string> run() {
    TANDEM_TRY(refuse_unknown());
    config_["architectures"] = Json::array({family_.architecture});
    for (const GgufKeyRow& row : family_.keys) TANDEM_TRY(copy(row));
    TANDEM_TRY(read_sizes());
    TANDEM_TRY(read_rope());
    config_["tie_word_embeddings"] = header_.find_tensor("output.weight") == nullptr;
    if (family_.finish != nullptr) TANDEM_TRY(family_.finish(header_, config_));
    return config_.dump(1);
  }

 private:
  [[nodiscard]] std::string key(std::string_view name) const {
    return std::string(family_.gguf) + "." + std::string(name);
  }

  [[nodiscard]] Status refuse_unknown() const {
    const std::string prefix = key("");
    for (const GgufPair& pair : header_.pairs) {
      if (!pair.key.starts_with(prefix)) continue;
      const std::string_view name = std::string_view(pair.key).substr(prefix.size());
      const bool known = std::ranges::find(kRead, name) != kRead.end() ||
                         std::ranges::any_of(
                             family_.keys, [&](const GgufKeyRow& row) { return row.gguf == name; });
      // A number that is there for completeness: nothing is scaled, clamped or switched on.
      const bool nothing = pair.value == GgufValue(uint64_t{0}) ||
                           pair.value == GgufValue(int64_t{0}) || pair.value == GgufValue(0.0) ||
                           pair.value == GgufValue(false);
      if (!known && !nothing) {
        return unsupported("key " + printable(pair.key, 80) +
                           " is not known; it may change what the model computes");
      }
    }
    for (const auto& [name, neutral] :
         {std::pair{"attention.causal", true}, std::pair{"use_parallel_residual", false}}) {
      TANDEM_ASSIGN(const auto value, header_.flag(key(name)));
      if (value.value_or(neutral) != neutral) {
        return unsupported("key " + key(name) + " is " + (*value ? "true" : "false") +
                           "; Tandem does not compute that");
      }
    }
    return {};
  }

  // One value, or an array of equal ones (a value for each layer).
  Status copy(const GgufKeyRow& row) {
    const std::string name = key(row.gguf);
    const GgufValue* value = header_.find(name);
    if (value == nullptr) return {};
    const std::string config_key(row.config);
    if (const auto* real = std::get_if<double>(value)) {
      TANDEM_TRY(header_.number(name));
      config_[config_key] = decimal(*real);
    } else if (const auto* many = std::get_if<std::vector<uint64_t>>(value)) {
      return copy_equal(*many, name, config_key);
    } else if (const auto* more = std::get_if<std::vector<int64_t>>(value)) {
      return copy_equal(*more, name, config_key);
    } else {
      TANDEM_ASSIGN(const auto integer, header_.integer(name, 0, UINT32_MAX));
      config_[config_key] = *integer;
      // A window of no positions is none.
      if (*integer == 0 && config_key == "sliding_window") config_[config_key] = nullptr;
    }
    return {};
  }

  template <typename T>
  Status copy_equal(const std::vector<T>& values, const std::string& name,
                    const std::string& config_key) {
    if (values.empty()) return invalid("key " + name + ": expected a value, found an empty array");
    for (const T value : values) {
      if (value != values.front()) {
        return unsupported("key " + name + " differs between layers; Tandem does not compute that");
      }
    }
    config_[config_key] = values.front();
    return {};
  }

  Result<uint64_t> required(std::string_view name) const {
    for (const GgufKeyRow& row : family_.keys) {
      if (row.gguf != name) continue;
      const auto found = config_.find(std::string(row.config));
      if (found != config_.end() && found->is_number_integer() &&
          found->template get<int64_t>() > 0) {
        return found->template get<uint64_t>();
      }
    }
    return invalid("key " + key(name) + ": expected an integer from 1 on, found none");
  }

  Status read_sizes() {
    TANDEM_ASSIGN(const uint64_t layers, required("block_count"));
    if (layers > 4096) {
      return invalid("key " + key("block_count") + ": expected at most 4096, found " +
                     std::to_string(layers));
    }
    TANDEM_ASSIGN(const uint64_t width, required("embedding_length"));
    TANDEM_ASSIGN(const uint64_t heads, required("attention.head_count"));
    const GgufTensor* embedding = header_.find_tensor("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      return invalid("tensor token_embd.weight: expected a matrix, found none");
    }
    config_["vocab_size"] = embedding->shape.front();
    head_dim_ = width / heads;
    TANDEM_ASSIGN(const auto own, header_.integer(key("attention.key_length"), 1, UINT32_MAX));
    if (own) head_dim_ = *own;
    TANDEM_ASSIGN(const auto values, header_.integer(key("attention.value_length"), 1, UINT32_MAX));
    if (values && *values != head_dim_) {
      return unsupported("key " + key("attention.value_length") + " is " + std::to_string(*values) +
                         "; Tandem computes only values as wide as keys, " +
                         std::to_string(head_dim_));
    }
    if (family_.gguf != "gpt2") config_["head_dim"] = head_dim_;
    return {};
  }

  Status read_rope() {
    TANDEM_ASSIGN(const auto base, header_.number(key("rope.freq_base")));
    if (family_.gguf == "gpt2") return {};
    config_["rope_theta"] = decimal(base.value_or(10000.0));
    TANDEM_ASSIGN(const auto rotated, header_.integer(key("rope.dimension_count"), 0, UINT32_MAX));
    if (rotated && *rotated != head_dim_) {
      config_["partial_rotary_factor"] =
          static_cast<double>(*rotated) / static_cast<double>(head_dim_);
    }
    TANDEM_ASSIGN(auto factor, header_.number(key("rope.scaling.factor")));
    if (!factor) {
      TANDEM_ASSIGN(factor, header_.number(key("rope.scale_linear")));
    }
    TANDEM_ASSIGN(
        const std::string kind,
        header_.text(key("rope.scaling.type"), factor && *factor != 1.0 ? "linear" : "none"));
    Json scaling;
    if (kind == "linear" || kind == "yarn") {
      scaling["rope_type"] = kind;
      scaling["factor"] = decimal(factor.value_or(1.0));
    } else if (kind != "none" && kind != "longrope") {
      return unsupported("key " + key("rope.scaling.type") + ": " + printable(kind, 40) +
                         " is not known; known are none, linear, yarn and longrope");
    }
    TANDEM_TRY(read_yarn(kind, scaling));
    TANDEM_TRY(read_factors(kind, scaling));
    if (!scaling.is_null()) config_["rope_scaling"] = scaling;
    return {};
  }

  Status read_yarn(const std::string& kind, Json& scaling) {
    TANDEM_ASSIGN(const auto context,
                  header_.integer(key("rope.scaling.original_context_length"), 1, UINT32_MAX));
    if (context) {
      // Phi-3 gives it without a type.
      if (kind == "none") original_context_ = *context;
      if (!scaling.is_null()) scaling["original_max_position_embeddings"] = *context;
    }
    TANDEM_ASSIGN(const auto attention, header_.number(key("rope.scaling.attn_factor")));
    attention_factor_ = attention;
    if (kind != "yarn") return {};
    TANDEM_ASSIGN(const auto fast, header_.number(key("rope.scaling.yarn_beta_fast")));
    TANDEM_ASSIGN(const auto slow, header_.number(key("rope.scaling.yarn_beta_slow")));
    if (fast) scaling["beta_fast"] = decimal(*fast);
    if (slow) scaling["beta_slow"] = decimal(*slow);
    for (const auto& [name, neutral] : {std::pair{"rope.scaling.yarn_log_multiplier", 0.1},
                                        std::pair{"rope.scaling.yarn_ext_factor", 1.0},
                                        std::pair{"rope.scaling.yarn_attn_factor", 1.0},
                                        std::pair{"rope.scaling.attn_factor", 1.0}}) {
      TANDEM_ASSIGN(const auto value, header_.number(key(name)));
      if (value && std::fabs(*value - neutral) > 1e-6 && *value != 0.0) {
        return unsupported("key " + key(name) + " is " + std::to_string(*value) +
                           "; Tandem computes only " + std::to_string(neutral));
      }
    }
    return {};
  }

  // Divisors of single frequencies, which the file has as tensors: open_gguf() fills in the
  // numbers.
  Status read_factors(const std::string& kind, Json& scaling) {
    const bool lists = header_.find_tensor("rope_factors_long.weight") != nullptr;
    if (header_.find_tensor("rope_freqs.weight") != nullptr) {
      if (!scaling.is_null()) {
        return unsupported("tensor rope_freqs.weight beside a rope.scaling.type of " + kind +
                           "; Tandem computes one or the other");
      }
      // The frequencies of Llama 3's scaling, already divided. Long RoPE divides likewise, and by
      // the same numbers whatever the position.
      scaling["rope_type"] = "longrope";
      scaling["short_factor"] = "rope_freqs.weight";
      scaling["long_factor"] = "rope_freqs.weight";
      scaling["attention_factor"] = 1.0;
      scaling["original_max_position_embeddings"] = config_["max_position_embeddings"];
    } else if (lists) {
      scaling["rope_type"] = "longrope";
      scaling["long_factor"] = "rope_factors_long.weight";
      scaling["short_factor"] = "rope_factors_short.weight";
      if (attention_factor_) scaling["attention_factor"] = decimal(*attention_factor_);
      TANDEM_ASSIGN(const auto context,
                    header_.integer(key("rope.scaling.original_context_length"), 1, UINT32_MAX));
      if (context) {
        scaling["original_max_position_embeddings"] = *context;
        config_["original_max_position_embeddings"] = *context;
      }
    } else if (original_context_ != 0) {
      config_["original_max_position_embeddings"] = original_context_;
    }
    return {};
  }

  const GgufHeader& header_;
  const GgufFamily& family_;
  Json config_;
  uint64_t head_dim_ = 0;
  uint64_t original_context_ = 0;
  std::optional<double> attention_factor_;
};

}  // namespace

Result<std::string> gguf_config(const GgufHeader& header, const GgufFamily& family) {
  return ConfigMaker(header, family).run();
}

}  // namespace tandem::weights
