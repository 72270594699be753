// A conversation as the text and tokens that the model was trained to read.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "text/marked_text.h"
#include "text/tokenizer.h"

namespace tandem::text {

/// JSON that keeps its keys in order, since templates print tools as they came.
using ChatJson = nlohmann::ordered_json;

/// What may be given to a chat template besides the messages.
struct RenderOptions {
  /// End with the beginning of the assistant's answer.
  bool add_generation_prompt = true;
  /// JSON array of tools as OpenAI's API has them; null for none.
  const ChatJson* tools = nullptr;
  /// JSON object of further variables, such as enable_thinking; counts as text from outside.
  const ChatJson* variables = nullptr;
  /// Name of the template, if the model has several; empty: "tool_use" if there are tools and a
  /// template of that name, else "default".
  std::string name;
  /// The time that strftime_now shows, in UTC; default: now.
  std::optional<std::chrono::system_clock::time_point> now;
};

class TemplateSet;
struct ChatSources;

/// The chat templates of one model. Immutable and thread-safe; copies are cheap.
class ChatTemplate {
 public:
  /// Reads chat_template.jinja, chat_template.json, additional_chat_templates/ or the
  /// chat_template of tokenizer_config.json, the first of these that is there. Nothing if the
  /// model has none (a base model): then use the prompt as it is. Fails if a template is
  /// malformed, with its line and column.
  static Result<std::optional<ChatTemplate>> load(const std::filesystem::path& folder);
  /// From one template's source; `tokenizer_config_json` (may be empty) gives bos_token and
  /// eos_token.
  static Result<ChatTemplate> parse(std::string_view source,
                                    std::string_view tokenizer_config_json = {});
  /// From sources that lie elsewhere than in a folder. Nothing if there are none.
  static Result<std::optional<ChatTemplate>> from_sources(ChatSources sources);

  /// Renders `messages`, a JSON array of objects with "role" and "content" (and what else the
  /// template knows). Fails with the template's own message if it refuses the conversation, with
  /// line and column if it goes wrong, and if it needs more than the sandbox grants (steps,
  /// depth, memory, output).
  [[nodiscard]] Result<MarkedText> render(const ChatJson& messages,
                                          const RenderOptions& options = {}) const;
  /// Renders and encodes. The BOS is the template's if it writes one, and added otherwise if the
  /// tokenizer's post-processor asks for one.
  [[nodiscard]] Result<std::vector<TokenId>> encode(const Tokenizer& tokenizer,
                                                    const ChatJson& messages,
                                                    const RenderOptions& options = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const TemplateSet> set) : set_(std::move(set)) {}
  std::shared_ptr<const TemplateSet> set_;
};

}  // namespace tandem::text
