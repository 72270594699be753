// Any bytes as a chat template: refused with a place and a reason, or rendered within the
// sandbox. Whatever a template does, no byte of a message loses its mark.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/chat.h"
#include "text/template/evaluator.h"
#include "text/template/parser.h"
#include "text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::text;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto body = jinja::parse_template(source);
  if (!body.ok()) {
    if (body.error().message.empty()) std::abort();
    return 0;
  }
  // The strange character stands in messages only.
  static const ChatJson messages = ChatJson::parse(
      R"([{"role": "system", "content": "⁂"}, {"role": "user", "content": "a ⁂ <b>"},
          {"role": "assistant", "content": null, "tool_calls": [{"n": 1, "x": [1.5, true]}]}])");
  std::unordered_map<std::string, jinja::Value> variables;
  variables["messages"] = jinja::Value::from_json(messages);
  variables["tools"] = jinja::Value::none();
  variables["bos_token"] = jinja::Value::string("<s>");
  jinja::Limits limits;
  limits.steps = 100'000;
  limits.bytes = 4 << 20;
  limits.output = 1 << 20;
  jinja::Evaluator evaluator(limits, {});
  const auto text = evaluator.run(*body, std::move(variables));
  if (!text.ok()) {
    if (text.error().message.empty()) std::abort();
    return 0;
  }
  if (text->size() > limits.output || text->marks().size() != text->size()) std::abort();
  if (source.find("\xE2\x81\x82") != std::string_view::npos ||
      source.find("20") != std::string_view::npos || source.find('\\') != std::string_view::npos) {
    return 0;
  }
  const std::string& all = text->text();
  for (size_t at = all.find("⁂"); at != std::string::npos; at = all.find("⁂", at + 3)) {
    if (!text->from_outside(at, 3)) std::abort();
  }
  return 0;
}
