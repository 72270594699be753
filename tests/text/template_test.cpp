// The template language: equal to Jinja2, bounded, and never forgetting who wrote a byte.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/chat.h"

namespace tandem::text {
namespace {

using json = ChatJson;

TEST(Template, EqualsJinja2) {
  std::ifstream stream(TANDEM_SOURCE_DIR "/tests/data/text/jinja_cases.json");
  const json file = json::parse(stream);
  ASSERT_GT(file["cases"].size(), 50U);
  for (const json& entry : file["cases"]) {
    const auto chat = ChatTemplate::parse(entry["template"].get<std::string>());
    const Result<MarkedText> text =
        chat.ok() ? chat->render(file["messages"]) : Result<MarkedText>(chat.error());
    if (entry.contains("error")) {
      EXPECT_FALSE(text.ok()) << entry["template"] << " should fail: " << entry["error"];
      if (!text.ok()) {
        EXPECT_NE(text.error().message.find("line 1, column "), std::string::npos);
      }
      continue;
    }
    ASSERT_TRUE(text.ok()) << entry["template"] << ": " << text.error().message;
    EXPECT_EQ(text->text(), entry["text"].get<std::string>()) << entry["template"];
  }
}

/// The rendered text with each byte from outside as '#'.
std::string marks(const std::string& source) {
  const auto chat = ChatTemplate::parse(source);
  if (!chat.ok()) return chat.error().message;
  const auto text = chat->render(json::parse(R"([{"role": "user", "content": "xyZ x", "n": 12}])"));
  if (!text.ok()) return text.error().message;
  std::string out = text->text();
  for (size_t i = 0; i < out.size(); ++i) {
    if (text->marks()[i] != 0) out[i] = '#';
  }
  return out;
}

TEST(Template, MarksFollowTextThroughEveryOperation) {
  const std::string m = "{% set c = messages[0].content %}";
  EXPECT_EQ(marks(m + "<{{ c }}>"), "<#####>");
  EXPECT_EQ(marks(m + "{{ '<' + c + '>' }}"), "<#####>");
  EXPECT_EQ(marks(m + "{{ '<' ~ c ~ 1 }}"), "<#####1");
  EXPECT_EQ(marks(m + "{{ c[1:3] }}{{ c[0] }}{{ c | first }}{{ c | last }}"), "#####");
  EXPECT_EQ(marks(m + "{{ c.split(' ') | join('-') }}"), "###-#");
  EXPECT_EQ(marks(m + "{{ 'a b' | replace(' ', c) }}|{{ c | replace('x', 'ab') }}"),
            "a#####b|ab###ab");
  EXPECT_EQ(marks(m + "{{ c | upper }}{{ c.lower() }}{{ c | title }}{{ c | capitalize | trim }}"),
            "####################");
  EXPECT_EQ(marks(m + "{{ 'a%sb' % c }}{{ 'a{}b'.format(c) }}"), "a#####ba#####b");
  EXPECT_EQ(
      marks(m + "{% set b %}a{{ c }}{% endset %}{{ b }}{% filter upper %}a{{ c }}{% endfilter %}"),
      "a#####A#####");
  EXPECT_EQ(marks(m + "{% macro f(x) %}a{{ x }}{% endmacro %}{{ f(c) }}{{ f('b') }}"), "a#####ab");
  EXPECT_EQ(marks(m + "{{ c | list | join }}{{ c | indent(1, true) }}"), "##### #####");
  EXPECT_EQ(marks("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}"),
            "####=####;#######=#####;#=##;");
  // Numbers too, and JSON with its punctuation.
  EXPECT_EQ(marks("{{ messages[0].n + 1 }}{{ messages[0].n | string }}{{ 1 + 1 }}"), "####2");
  EXPECT_EQ(marks(m + "{{ [c] | tojson }}{{ ['a'] | tojson }}"), "#########[\"a\"]");
}

std::string failure(const std::string& source) {
  const auto chat = ChatTemplate::parse(source);
  if (!chat.ok()) return chat.error().message;
  const auto text = chat->render(json::array());
  return text.ok() ? "rendered " + std::to_string(text->size()) : text.error().message;
}

TEST(Template, TheSandboxBoundsStepsMemoryOutputAndDepth) {
  const std::string loop = "{% for a in range(99999) %}";
  EXPECT_NE(
      failure("{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}")
          .find("steps"),
      std::string::npos);
  EXPECT_NE(failure("{% set ns = namespace(x='aaaaaaaa') %}" + loop +
                    "{% set ns.x = ns.x + ns.x %}{% endfor %}")
                .find("bytes"),
            std::string::npos);
  EXPECT_NE(failure("{{ 'a' * 999999999999 }}").find("bytes"), std::string::npos);
  EXPECT_NE(failure("{% set x = 'a' * 1000000 %}" + loop + "{{ x }}{% endfor %}")
                .find("writes more than"),
            std::string::npos);
  EXPECT_NE(failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("too deep"),
            std::string::npos);
  EXPECT_NE(
      failure("{% set ns = namespace(x=[]) %}" + loop + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}")
          .find("too deep"),
      std::string::npos);
  EXPECT_NE(failure("{{ range(1000000) }}").find("100000"), std::string::npos);
  EXPECT_NE(failure("{{ " + std::string(100000, '(') + "1 }}").find("too deep"), std::string::npos);
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += "+1";
  EXPECT_NE(failure(chain + " }}").find("too deep"), std::string::npos);
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if 1 %}";
  EXPECT_NE(failure(blocks).find("too deep"), std::string::npos);
}

TEST(Template, LongStringsCostStepsByTheirLength) {
  const std::string loop = "{% for a in range(99999) %}";
  const std::string text = "{% set x = 'a' * 1000000 %}{% set y = 'a' * 500000 ~ 'b' %}";
  for (const std::string& work :
       {std::string("{% if x | length %}{% endif %}"), std::string("{% if y in x %}{% endif %}"),
        std::string("{% if x.rfind(y) %}{% endif %}"),
        std::string("{% if x == x ~ '' %}{% endif %}"),
        std::string("{% if x in {x: 1} %}{% endif %}"), std::string("{% if x[-1] %}{% endif %}")}) {
    const std::string message =
        failure(std::string(text).append(loop).append(work).append("{% endfor %}"));
    EXPECT_TRUE(message.find("steps") != std::string::npos ||
                message.find("bytes") != std::string::npos)
        << work << ": " << message;
  }
}

TEST(Template, FiltersGoThroughACharacterListOfTheirOwn) {
  EXPECT_EQ(failure("{{ 'abc' | select | join }}{{ 'abc' | map('upper') | unique | join }}"
                    "{{ 'abc' | max }}{{ 'cab' | sort | join }}"),
            "rendered 10");
}

TEST(Template, ValuesThatHoldThemselvesAreFreed) {
  EXPECT_EQ(failure("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns] %}"),
            "rendered 0");
  EXPECT_EQ(failure("{% for i in [1] %}{% macro f() %}{% endmacro %}{% set g = f %}{% endfor %}"),
            "rendered 0");
}

TEST(Template, SaysWhereItIsMalformed) {
  EXPECT_EQ(failure("a\n {{ 1 + }}"),
            "chat template \"default\": line 2, column 9: expected an expression, found \"}}\"");
  EXPECT_NE(failure("{% include 'x' %}").find("unsupported tag \"include\""), std::string::npos);
  EXPECT_NE(failure("{{ 'a").find("line 1, column 4: string without an end"), std::string::npos);
  EXPECT_NE(failure("{{ a ").find("tag without an end"), std::string::npos);
  EXPECT_NE(failure("{# a").find("comment without an end"), std::string::npos);
  EXPECT_NE(failure("{% break %}").find("outside of a loop"), std::string::npos);
  EXPECT_NE(failure("\xFF").find("not UTF-8"), std::string::npos);
}

TEST(ChatTemplateFiles, NamedTemplatesToolsAndTime) {
  const auto chat = ChatTemplate::parse("{{ strftime_now('%d %b %Y') }} {{ bos_token }} {{ x }}",
                                        R"({"bos_token": {"content": "<s>"}})");
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  const json variables = json::parse(R"({"x": "<s>"})");
  RenderOptions options;
  options.variables = &variables;
  options.now = std::chrono::system_clock::from_time_t(1796000000);
  const auto text = chat->render(json::array(), options);
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(text->text(), "30 Nov 2026 <s> <s>");
  EXPECT_FALSE(text->from_outside(12, 3));
  EXPECT_TRUE(text->from_outside(16, 3));
  options.name = "rag";
  EXPECT_EQ(chat->render(json::array(), options).error().kind, ErrorKind::kNotFound);
}

TEST(ChatTemplateFiles, BaseModelsHaveNone) {
  const auto chat = ChatTemplate::load(TANDEM_SOURCE_DIR "/tests/data");
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  EXPECT_FALSE(chat->has_value());
}

}  // namespace
}  // namespace tandem::text
