// Compares the tokenizer and the chat templates with what the reference implementations gave:
//   text_oracle FOLDER
// where FOLDER holds one folder for each vocabulary, as generate.mjs writes them.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using json = tandem::text::ChatJson;
using tandem::text::ChatTemplate;
using tandem::text::TokenId;
using tandem::text::Tokenizer;

constexpr size_t kShown = 5;
constexpr int kUnicodeVersion = 15;

json read_json(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return json::parse(stream);
}

struct Tally {
  size_t checked = 0;
  size_t wrong = 0;
  size_t skipped = 0;

  bool check(bool right, const std::string& what, const json& expected, const json& found) {
    ++checked;
    if (right) return true;
    if (wrong++ < kShown) {
      std::printf("  %s\n    expected %s\n    found    %s\n", what.c_str(), expected.dump().c_str(),
                  found.dump().c_str());
    }
    return false;
  }
};

/// Whether the libraries' Unicode versions may disagree: a character is newer than ICU's.
bool has_new_character(std::string_view text) {
  while (!text.empty()) {
    const auto c = tandem::text::decode_utf8(text);
    if (!tandem::text::is_assigned_by(c.code_point, kUnicodeVersion)) return true;
    text.remove_prefix(c.length);
  }
  return false;
}

void check_strings(const Tokenizer& tokenizer, const json& file, Tally& tally) {
  for (const json& entry : file["cases"]) {
    const auto text = entry["text"].get<std::string>();
    if (has_new_character(text)) {
      ++tally.skipped;
      continue;
    }
    const auto ids = tokenizer.encode(text, {.parse_control = true});
    if (!ids.ok()) {
      tally.check(false, "encode " + entry["text"].dump(), "ids", ids.error().message);
      continue;
    }
    if (!tally.check(*ids == entry["ids"].get<std::vector<TokenId>>(),
                     "encode " + entry["text"].dump(), entry["ids"], *ids)) {
      continue;
    }
    const std::string decoded = tokenizer.decode(*ids, true);
    tally.check(decoded == entry["decoded"].get<std::string>(), "decode " + entry["text"].dump(),
                entry["decoded"], decoded);
    tandem::text::Detokenizer stream(tokenizer, true);
    std::string streamed;
    for (const TokenId id : *ids) streamed += stream.push(id);
    streamed += stream.flush();
    tally.check(streamed == decoded, "stream " + entry["text"].dump(), decoded, streamed);
    // What a user types: no control token, whatever it says.
    const auto typed = tokenizer.encode(text);
    const bool harmless = typed.ok() && std::none_of(typed->begin(), typed->end(), [&](TokenId id) {
                            return tokenizer.is_control(id) && tokenizer.token_text(id) != "<unk>";
                          });
    tally.check(harmless, "typed " + entry["text"].dump(), "no control token",
                typed.ok() ? json(*typed) : json(typed.error().message));
  }
  const auto special = tokenizer.encode("Hi", {.add_special_tokens = true, .parse_control = true});
  tally.check(special.ok() && *special == file["special"].get<std::vector<TokenId>>(),
              "encode with special tokens", file["special"],
              special.ok() ? json(*special) : json(special.error().message));
}

void check_chats(const ChatTemplate& chat, const json& cases, Tally& tally) {
  for (const json& entry : cases) {
    tandem::text::RenderOptions options;
    options.add_generation_prompt = entry["add_generation_prompt"].get<bool>();
    options.tools = &entry["tools"];
    options.variables = &entry["variables"];
    const auto text = chat.render(entry["messages"], options);
    const std::string what = "chat " + entry["messages"].dump();
    if (entry.contains("error")) {
      tally.check(!text.ok(), what, entry["error"], text.ok() ? text->text() : "");
    } else {
      tally.check(text.ok() && text->text() == entry["text"].get<std::string>(), what,
                  entry["text"], text.ok() ? text->text() : text.error().message);
    }
  }
}

bool check_folder(const std::filesystem::path& folder) {
  Tally tally;
  if (std::filesystem::exists(folder / "strings.json")) {
    const auto tokenizer = Tokenizer::load(folder);
    if (!tokenizer.ok()) {
      std::printf("%s\n", tokenizer.error().message.c_str());
      return false;
    }
    check_strings(*tokenizer, read_json(folder / "strings.json"), tally);
  }
  const auto chat = ChatTemplate::load(folder);
  if (!chat.ok()) {
    std::printf("%s\n", chat.error().message.c_str());
    return false;
  }
  if (chat->has_value()) check_chats(**chat, read_json(folder / "chats.json"), tally);
  std::printf("%s: %zu checks, %zu wrong (%zu strings with newer characters left out)\n",
              folder.filename().c_str(), tally.checked, tally.wrong, tally.skipped);
  return tally.checked > 0 && tally.wrong == 0;
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): a folder that can't be read may end it so
int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: text_oracle FOLDER\n");
    return 2;
  }
  size_t folders = 0;
  bool right = true;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    if (!entry.is_directory() || !std::filesystem::exists(entry.path() / "chats.json")) continue;
    ++folders;
    right = check_folder(entry.path()) && right;
  }
  std::printf("%zu vocabularies and templates\n", folders);
  return right && folders > 0 ? 0 : 1;
}
