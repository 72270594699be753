#include "weights/quantized.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "weights/printable.h"

namespace tandem::weights {
namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;

std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
}

Error refused(std::string_view key, const Json& value) {
  return unsupported("config.json: quantization_config has " + std::string(key) + " " +
                     shown(value) + "; Tandem does not read that");
}

const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

/// Fails unless the member is missing, null or one of these.
template <size_t kCount>
Status allow(const Json& object, const char* key, const std::array<Json, kCount>& values) {
  const Json& value = member(object, key);
  if (value.is_null() || std::ranges::find(values, value) != values.end()) return {};
  return refused(key, value);
}

Result<uint32_t> read_bits(const Json& object, const char* key, uint32_t fallback) {
  const Json& value = member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_number_integer()) return refused(key, value);
  const auto bits = value.get<int64_t>();
  if (bits != 2 && bits != 4 && bits != 8) return refused(key, value);
  return static_cast<uint32_t>(bits);
}

Status read_fp8(const Json& config, const StoredTensors& found, Quantized& result) {
  TANDEM_TRY(allow(config, "fmt", std::array<Json, 4>{"e4m3", "float8_e4m3fn", "e5m2", "e4m3fn"}));
  uint64_t rows = 0;
  uint64_t columns = 0;
  const Json& block = member(config, "weight_block_size");
  if (!block.is_null()) {
    if (!block.is_array() || block.size() != 2 || !block[0].is_number_unsigned() ||
        !block[1].is_number_unsigned() || block[0].get<uint64_t>() == 0 ||
        block[1].get<uint64_t>() == 0 || block[0].get<uint64_t>() > 65536 ||
        block[1].get<uint64_t>() > 65536) {
      return refused("weight_block_size", block);
    }
    rows = block[0].get<uint64_t>();
    columns = block[1].get<uint64_t>();
  }
  return add_fp8(found, rows, columns, result);
}

Status read_awq(const Json& config, const StoredTensors& found, Quantized& result) {
  TANDEM_TRY(allow(config, "version", std::array<Json, 2>{"gemm", "GEMM"}));
  TANDEM_TRY(allow(config, "backend", std::array<Json, 2>{"autoawq", "auto"}));
  TANDEM_ASSIGN(const uint32_t bits, read_bits(config, "bits", 4));
  if (bits != 4) return refused("bits", member(config, "bits"));
  return add_packed(found, {PackedKind::kAwq, 4, false}, result);
}

Status read_gptq(const Json& config, const StoredTensors& found, Quantized& result) {
  TANDEM_TRY(allow(config, "checkpoint_format", std::array<Json, 2>{"gptq", "gptq_v2"}));
  TANDEM_TRY(allow(config, "is_marlin_format", std::array<Json, 1>{false}));
  TANDEM_TRY(allow(config, "pack_dtype", std::array<Json, 1>{"int32"}));
  const Json& dynamic = member(config, "dynamic");
  if (!dynamic.is_null() && !dynamic.empty()) return refused("dynamic", dynamic);
  PackedOptions options;
  TANDEM_ASSIGN(options.bits, read_bits(config, "bits", 4));
  options.kind =
      member(config, "checkpoint_format") == "gptq_v2" ? PackedKind::kGptqV2 : PackedKind::kGptq;
  const Json& order = member(config, "desc_act");
  if (!order.is_null() && !order.is_boolean()) return refused("desc_act", order);
  options.any_order = order == true && member(config, "group_size") != -1;
  return add_packed(found, options, result);
}

/// The weights of one group of modules. Gives the bits of integers, 0 of floats.
Result<uint32_t> check_scheme(const Json& scheme) {
  for (const char* key : {"output_activations"}) {
    if (!member(scheme, key).is_null()) return refused(key, member(scheme, key));
  }
  const Json& weights = member(scheme, "weights");
  if (!weights.is_object()) return refused("weights", weights);
  TANDEM_TRY(
      allow(weights, "strategy", std::array<Json, 4>{"tensor", "channel", "group", "block"}));
  TANDEM_TRY(allow(weights, "dynamic", std::array<Json, 1>{false}));
  TANDEM_TRY(
      allow(weights, "actorder", std::array<Json, 4>{"group", "weight", "static", "dynamic"}));
  TANDEM_TRY(allow(weights, "type", std::array<Json, 2>{"int", "float"}));
  TANDEM_ASSIGN(const uint32_t bits, read_bits(weights, "num_bits", 8));
  if (member(weights, "type") != "float") {
    if (bits == 2) return refused("num_bits", member(weights, "num_bits"));
    return bits;
  }
  if (bits != 8) return refused("float weights with num_bits", member(weights, "num_bits"));
  return 0U;
}

struct BlockShape {
  uint64_t rows = 0;
  uint64_t columns = 0;
};
BlockShape block_structure(const Json& scheme) {
  const Json& block = member(member(scheme, "weights"), "block_structure");
  if (!block.is_array() || block.size() != 2 || !block[0].is_number_unsigned() ||
      !block[1].is_number_unsigned()) {
    return {};
  }
  return {std::min<uint64_t>(block[0].get<uint64_t>(), 65536),
          std::min<uint64_t>(block[1].get<uint64_t>(), 65536)};
}

Status read_compressed(const Json& config, const StoredTensors& found, Quantized& result) {
  const std::array<Json, 6> formats{"pack-quantized",  "int-quantized", "float-quantized",
                                    "naive-quantized", "dense",         "mixed-precision"};
  TANDEM_TRY(allow(config, "format", formats));
  TANDEM_TRY(allow(member(config, "sparsity_config"), "format", std::array<Json, 1>{"dense"}));
  TANDEM_TRY(allow(config, "quantization_status", std::array<Json, 2>{"compressed", "frozen"}));
  for (const char* key : {"transform_config"}) {
    const Json& value = member(config, key);
    if (!value.is_null() && !value.empty()) return refused(key, value);
  }
  const Json& groups = member(config, "config_groups");
  if (!groups.is_object()) return refused("config_groups", groups);
  BlockShape block;
  bool floats = false;
  bool integers = false;
  uint32_t act_order = 0;
  for (const auto& [name, scheme] : groups.items()) {
    TANDEM_TRY(allow(scheme, "format", formats));
    TANDEM_ASSIGN(const uint32_t bits, check_scheme(scheme));
    const BlockShape own = block_structure(scheme);
    if (own.rows != 0) block = own;
    (bits == 0 ? floats : integers) = true;
    if (member(member(scheme, "weights"), "actorder") == "group") ++act_order;
  }
  if (floats) TANDEM_TRY(add_fp8(found, block.rows, block.columns, result));
  if (integers) {
    // Bits are told by the shapes: groups may differ in them.
    TANDEM_TRY(add_packed(found, {PackedKind::kPackQuantized, 0, act_order != 0}, result));
    TANDEM_TRY(add_packed(found, {PackedKind::kIntQuantized, 8, false}, result));
  }
  return {};
}

/// The quantization_config and the object that holds it.
struct Site {
  Json* object = nullptr;
  const char* key = nullptr;
};
std::optional<Site> find_site(Json& root) {
  Json* text = &root;
  const auto nested = root.find("text_config");
  if (nested != root.end() && nested->is_object()) text = &*nested;
  for (Json* object : {&root, text}) {
    for (const char* key : {"quantization_config", "compression_config"}) {
      const auto found = object->find(key);
      if (found != object->end() && !found->is_null()) return Site{object, key};
    }
  }
  return std::nullopt;
}

}  // namespace

Result<Quantized> read_quantized(const std::string& config_json, const StoredTensors& found) {
  Quantized result;
  result.config_json = config_json;
  Json root = Json::parse(config_json, nullptr, false);
  // A file that is no JSON is refused by whoever reads it for what it says.
  if (!root.is_object()) return result;
  const auto site = find_site(root);
  if (!site) return result;
  const Json config = (*site->object)[site->key];
  if (!config.is_object()) return refused("the value", config);
  const Json& method = member(config, "quant_method");
  Status status;
  if (method == "fp8" || method == "fbgemm_fp8") {
    status = read_fp8(config, found, result);
  } else if (method == "awq") {
    status = read_awq(config, found, result);
  } else if (method == "gptq") {
    status = read_gptq(config, found, result);
  } else if (method == "compressed-tensors") {
    status = read_compressed(config, found, result);
  } else if (method == "mxfp4") {
    status = add_mxfp4(found, result);
    // Repositories with the experts unpacked keep the setting.
    if (status.ok() && result.weights.empty()) {
      site->object->erase(site->key);
      result.config_json = root.dump(1);
      return result;
    }
  } else {
    return unsupported("config.json: quantization_config has quant_method " + shown(method) +
                       "; known are fp8, fbgemm_fp8, awq, gptq and compressed-tensors");
  }
  if (!status.ok()) return status.error();
  if (result.weights.empty()) {
    return invalid("config.json: quantization_config has quant_method " + shown(method) +
                   ", but no tensor is stored so");
  }
  site->object->erase(site->key);
  result.config_json = root.dump(1);
  return result;
}

}  // namespace tandem::weights
