#include "text/generation_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/files.h"

namespace tandem::text {

namespace {

using nlohmann::json;

Result<json> read_object(const std::filesystem::path& path) {
  TANDEM_ASSIGN(const auto text, read_file(path, kMaxConfigBytes));
  if (!text.has_value()) return json::object();
  json value = json::parse(*text, nullptr, false);
  if (!value.is_object()) return invalid("must be a JSON object");
  return value;
}

Result<TokenId> read_id(const json& value, const char* key) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT32_MAX) {
    return invalid(std::string(key) + " must be a token id, found " + value.dump().substr(0, 60));
  }
  return value.get<TokenId>();
}

/// Appends eos_token_id, a number or a list of numbers.
Status read_eos(const json& object, std::vector<TokenId>& out) {
  const auto value = object.find("eos_token_id");
  if (value == object.end() || value->is_null()) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& entry : list) {
    TANDEM_ASSIGN(const TokenId id, read_id(entry, "eos_token_id"));
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  }
  return {};
}

Status read_bos(const json& object, std::optional<TokenId>& out) {
  const auto value = object.find("bos_token_id");
  if (value == object.end() || value->is_null()) return {};
  TANDEM_ASSIGN(out, read_id(*value, "bos_token_id"));
  return {};
}

Status read_number(const json& object, const char* key, double low, double high,
                   std::optional<double>& out) {
  const auto value = object.find(key);
  if (value == object.end() || value->is_null()) return {};
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
    return invalid(std::string(key) + " must be a number from " + json(low).dump() + " to " +
                   json(high).dump() + ", found " + value->dump().substr(0, 60));
  }
  out = value->get<double>();
  return {};
}

Status read_sampling(const json& object, GenerationConfig& out) {
  TANDEM_TRY(read_number(object, "temperature", 0, 1000, out.temperature));
  TANDEM_TRY(read_number(object, "top_p", 0, 1, out.top_p));
  TANDEM_TRY(read_number(object, "min_p", 0, 1, out.min_p));
  TANDEM_TRY(read_number(object, "repetition_penalty", 0, 1000, out.repetition_penalty));
  std::optional<double> top_k;
  TANDEM_TRY(read_number(object, "top_k", 0, UINT32_MAX, top_k));
  if (top_k.has_value()) out.top_k = static_cast<uint32_t>(*top_k);
  const auto sample = object.find("do_sample");
  if (sample == object.end() || sample->is_null()) return {};
  if (!sample->is_boolean()) return invalid("do_sample must be a boolean");
  out.do_sample = sample->get<bool>();
  return {};
}

}  // namespace

Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder,
                                                const Tokenizer* tokenizer) {
  GenerationConfig out;
  const auto read = [&](const char* name, bool sampling) -> Status {
    const std::filesystem::path path = folder / name;
    const auto file = [&]() -> Status {
      TANDEM_ASSIGN(const json object, read_object(path));
      TANDEM_TRY(read_eos(object, out.eos_ids));
      TANDEM_TRY(read_bos(object, out.bos_id));
      if (sampling) return read_sampling(object, out);
      const auto nested = object.find("text_config");
      if (nested == object.end() || !nested->is_object()) return {};
      TANDEM_TRY(read_eos(*nested, out.eos_ids));
      return out.bos_id.has_value() ? Status() : read_bos(*nested, out.bos_id);
    };
    const Status status = file();
    return status.ok() ? status : Status(status.error().in(path.string()));
  };
  TANDEM_TRY(read("config.json", false));
  TANDEM_TRY(read("generation_config.json", true));
  if (tokenizer == nullptr) return out;
  const auto own = tokenizer->eos_id();
  if (own.has_value() &&
      std::find(out.eos_ids.begin(), out.eos_ids.end(), *own) == out.eos_ids.end()) {
    out.eos_ids.push_back(*own);
  }
  if (!out.bos_id.has_value()) out.bos_id = tokenizer->bos_id();
  return out;
}

}  // namespace tandem::text
