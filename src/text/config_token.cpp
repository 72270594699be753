// A token as tokenizer_config.json names it.
#include <nlohmann/json.hpp>

#include "text/chat_files.h"

namespace tandem::text {

using nlohmann::json;

Result<std::string> config_token(const json& config, const char* key) {
  const auto value = config.find(key);
  if (value == config.end() || value->is_null()) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (value->is_object() && value->contains("content") && (*value)["content"].is_string()) {
    return (*value)["content"].get<std::string>();
  }
  return invalid(std::string(key) + " must be a string or an object with a \"content\"");
}

}  // namespace tandem::text
