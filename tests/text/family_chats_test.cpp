// Templates in the manner of the families, over conversations in odd orders, with tools, thinking,
// parts and missing fields: what Jinja2 makes of each, or why it fails.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/chat.h"

namespace tandem::text {
namespace {

using json = ChatJson;

void expect_answer(const json& wanted, const Result<MarkedText>& found) {
  if (wanted.contains("text")) {
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->text(), wanted["text"].get<std::string>());
    return;
  }
  ASSERT_FALSE(found.ok()) << found->text();
  const std::string& message = found.error().message;
  if (wanted.contains("raised")) {
    EXPECT_NE(message.find(wanted["raised"].get<std::string>()), std::string::npos) << message;
  } else {
    EXPECT_NE(message.find("line "), std::string::npos) << message;
    EXPECT_NE(message.find("column "), std::string::npos) << message;
  }
}

TEST(FamilyChats, EqualJinja2) {
  std::ifstream stream(TANDEM_SOURCE_DIR "/tests/data/text/family_chats.json");
  const json file = json::parse(stream);
  ASSERT_GT(file["templates"].size(), 5U);
  ASSERT_GT(file["conversations"].size(), 30U);
  const json tokens = {{"bos_token", file["bos_token"]}, {"eos_token", file["eos_token"]}};
  for (const json& entry : file["templates"]) {
    const auto chat = ChatTemplate::parse(entry["template"].get<std::string>(), tokens.dump());
    ASSERT_TRUE(chat.ok()) << chat.error().message;
    ASSERT_EQ(entry["answers"].size(), file["conversations"].size());
    for (size_t i = 0; i < entry["answers"].size(); ++i) {
      const json& conversation = file["conversations"][i];
      SCOPED_TRACE(entry["name"].get<std::string>() + ", " + conversation.dump());
      RenderOptions options;
      options.add_generation_prompt = conversation["add_generation_prompt"].get<bool>();
      options.tools = &conversation["tools"];
      options.variables = &conversation["variables"];
      expect_answer(entry["answers"][i], chat->render(conversation["messages"], options));
    }
  }
}

}  // namespace
}  // namespace tandem::text
