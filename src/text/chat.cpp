#include "text/chat.h"

#include <map>
#include <nlohmann/json.hpp>

#include "text/chat_files.h"
#include "text/template/evaluator.h"
#include "text/template/parser.h"

namespace tandem::text {

/// The parsed templates by name, and what else they see.
class TemplateSet {
 public:
  std::map<std::string, jinja::Body> bodies;
  ChatSources sources;
};

namespace {

Result<std::shared_ptr<const TemplateSet>> build(ChatSources sources) {
  auto set = std::make_shared<TemplateSet>();
  for (const auto& [name, source] : sources.templates) {
    auto body = jinja::parse_template(source);
    if (!body.ok()) return body.error().in("chat template \"" + name.substr(0, 60) + "\"");
    set->bodies.emplace(name, std::move(*body));
  }
  set->sources = std::move(sources);
  return std::shared_ptr<const TemplateSet>(std::move(set));
}

/// The template to use; null and an error if there is none.
Result<const jinja::Body*> choose(const TemplateSet& set, const RenderOptions& options,
                                  std::string& name) {
  name = options.name;
  const bool has_tools = options.tools != nullptr && !options.tools->empty();
  if (name.empty() && has_tools && set.bodies.contains("tool_use")) name = "tool_use";
  if (name.empty()) name = "default";
  auto found = set.bodies.find(name);
  // A single template is the default whatever its name.
  if (found == set.bodies.end() && options.name.empty() && set.bodies.size() == 1) {
    found = set.bodies.begin();
    name = found->first;
  }
  if (found == set.bodies.end()) {
    return Error{ErrorKind::kNotFound,
                 "the model has no chat template named \"" + name.substr(0, 60) + "\""};
  }
  return &found->second;
}

}  // namespace

Result<std::optional<ChatTemplate>> ChatTemplate::load(const std::filesystem::path& folder) {
  TANDEM_ASSIGN(ChatSources sources, read_chat_sources(folder));
  if (sources.templates.empty()) return std::optional<ChatTemplate>();
  auto set = build(std::move(sources));
  if (!set.ok()) return set.error().in(folder.string());
  return std::optional<ChatTemplate>(ChatTemplate(std::move(*set)));
}

Result<std::optional<ChatTemplate>> ChatTemplate::from_sources(ChatSources sources) {
  if (sources.templates.empty()) return std::optional<ChatTemplate>();
  TANDEM_ASSIGN(auto set, build(std::move(sources)));
  return std::optional<ChatTemplate>(ChatTemplate(std::move(set)));
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source,
                                         std::string_view tokenizer_config_json) {
  ChatSources sources;
  sources.templates["default"] = std::string(source);
  TANDEM_TRY(read_chat_config(tokenizer_config_json, sources));
  TANDEM_ASSIGN(auto set, build(std::move(sources)));
  return ChatTemplate(std::move(set));
}

Result<MarkedText> ChatTemplate::render(const ChatJson& messages,
                                        const RenderOptions& options) const {
  using jinja::Value;
  if (!messages.is_array()) return invalid("messages must be a JSON array");
  for (const auto& message : messages) {
    if (!message.is_object()) return invalid("a message must be a JSON object");
  }
  if (options.tools != nullptr && !options.tools->is_array() && !options.tools->is_null()) {
    return invalid("tools must be a JSON array");
  }
  if (options.variables != nullptr && !options.variables->is_object()) {
    return invalid("template variables must be a JSON object");
  }
  std::string name;
  TANDEM_ASSIGN(const jinja::Body* body, choose(*set_, options, name));
  std::unordered_map<std::string, Value> variables;
  for (const auto& [key, token] : set_->sources.tokens) variables[key] = Value::string(token);
  if (!set_->sources.bos_token.empty()) {
    variables["bos_token"] = Value::string(set_->sources.bos_token);
  }
  if (!set_->sources.eos_token.empty()) {
    variables["eos_token"] = Value::string(set_->sources.eos_token);
  }
  variables["documents"] = Value::none();
  if (options.variables != nullptr) {
    for (const auto& [key, value] : options.variables->items()) {
      variables[key] = Value::from_json(value);
    }
  }
  variables["messages"] = Value::from_json(messages);
  variables["tools"] = options.tools == nullptr ? Value::none() : Value::from_json(*options.tools);
  variables["add_generation_prompt"] = Value::boolean(options.add_generation_prompt);
  jinja::Evaluator evaluator({}, options.now.value_or(std::chrono::system_clock::now()));
  auto text = evaluator.run(*body, std::move(variables));
  if (!text.ok()) return text.error().in("chat template \"" + name.substr(0, 60) + "\"");
  return text;
}

Result<std::vector<TokenId>> ChatTemplate::encode(const Tokenizer& tokenizer,
                                                  const ChatJson& messages,
                                                  const RenderOptions& options) const {
  TANDEM_ASSIGN(const MarkedText text, render(messages, options));
  return tokenizer.encode(text, true);
}

}  // namespace tandem::text
