#include "text/chat_files.h"

#include <nlohmann/json.hpp>

#include "text/files.h"

namespace tandem::text {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// chat_template: one source, or a list of {name, template}.
Status read_templates(const json& value, ChatSources& out) {
  if (value.is_null()) return {};
  if (value.is_string()) {
    out.templates["default"] = value.get<std::string>();
    return {};
  }
  if (!value.is_array() && !value.is_object()) {
    return invalid("chat_template must be a string or a list of named templates");
  }
  for (const auto& [key, entry] : value.items()) {
    if (value.is_object() && entry.is_string()) {
      out.templates[key] = entry.get<std::string>();
      continue;
    }
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("template") || !entry["template"].is_string()) {
      return invalid("a named chat_template must have a name and a template, both strings");
    }
    out.templates[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
  return {};
}

}  // namespace

Status read_chat_config(std::string_view text, ChatSources& out) {
  if (text.empty()) return {};
  const json config = json::parse(text, nullptr, false);
  if (!config.is_object()) return invalid("must be a JSON object");
  TANDEM_ASSIGN(out.bos_token, config_token(config, "bos_token"));
  TANDEM_ASSIGN(out.eos_token, config_token(config, "eos_token"));
  for (const char* key : {"pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
    TANDEM_ASSIGN(const std::string token, config_token(config, key));
    if (!token.empty()) out.tokens[key] = token;
  }
  if (out.templates.empty() && config.contains("chat_template")) {
    return read_templates(config["chat_template"], out);
  }
  return {};
}

Result<ChatSources> read_chat_sources(const fs::path& folder) {
  ChatSources out;
  const fs::path own = folder / "chat_template.jinja";
  TANDEM_ASSIGN(auto jinja, read_file(own, kMaxConfigBytes));
  if (jinja.has_value()) out.templates["default"] = std::move(*jinja);
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates", code)) {
    if (entry.path().extension() != ".jinja") continue;
    TANDEM_ASSIGN(auto source, read_file(entry.path(), kMaxConfigBytes));
    if (source.has_value()) out.templates[entry.path().stem().string()] = std::move(*source);
  }
  const fs::path as_json = folder / "chat_template.json";
  TANDEM_ASSIGN(const auto text, read_file(as_json, kMaxConfigBytes));
  if (out.templates.empty() && text.has_value()) {
    const json value = json::parse(*text, nullptr, false);
    if (!value.is_object()) return invalid(as_json.string() + ": must be a JSON object");
    const Status status = read_templates(value.value("chat_template", json()), out);
    if (!status.ok()) return status.error().in(as_json.string());
  }
  const fs::path config = folder / "tokenizer_config.json";
  TANDEM_ASSIGN(const auto config_text, read_file(config, kMaxConfigBytes));
  if (config_text.has_value()) {
    const Status status = read_chat_config(*config_text, out);
    if (!status.ok()) return status.error().in(config.string());
  }
  return out;
}

}  // namespace tandem::text
