// Where a model folder keeps its chat templates.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace tandem::text {

struct ChatSources {
  std::map<std::string, std::string> templates;  ///< by name; the only one is "default"
  std::string bos_token;                         ///< as a template sees it; empty if none
  std::string eos_token;
  std::map<std::string, std::string> tokens;  ///< pad_token, unk_token, …: what else is named
};

Result<ChatSources> read_chat_sources(const std::filesystem::path& folder);
/// bos_token and the like, and chat_template, from the contents of tokenizer_config.json.
Status read_chat_config(std::string_view tokenizer_config_json, ChatSources& out);

/// A token that tokenizer_config.json names, a string or an object with "content"; empty if none.
Result<std::string> config_token(const nlohmann::json& config, const char* key);

}  // namespace tandem::text
