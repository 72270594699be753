// tandem tokenize: the tokens of a text.
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/model_files.h"
#include "cli/output.h"

namespace tandem::cli {
namespace {

struct TokenizeFlags {
  std::string model;
  std::optional<std::string> text;
  bool ids = false;
  bool special = false;
  bool user = false;
  bool json = false;
};

Result<std::string> tokenize(TokenizeFlags& flags) {
  if (*flags.text == "-") {
    TANDEM_ASSIGN(flags.text, read_input(text::Tokenizer::kMaxTextBytes));
  }
  TANDEM_ASSIGN(const auto folder, find_model(flags.model));
  TANDEM_ASSIGN(const text::Tokenizer tokenizer, open_tokenizer(folder));
  text::EncodeOptions options;
  options.add_special_tokens = flags.special;
  options.parse_control = !flags.user;
  TANDEM_ASSIGN(const auto ids, tokenizer.encode(*flags.text, options));
  if (flags.json) {
    nlohmann::ordered_json object;
    object["ids"] = ids;
    object["tokens"] = nlohmann::ordered_json::array();
    for (const text::TokenId id : ids) {
      object["tokens"].push_back(std::string(tokenizer.token_text(id).value_or("")));
    }
    return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  std::string out;
  for (const text::TokenId id : ids) {
    if (flags.ids) {
      out += (out.empty() ? "" : ",") + std::to_string(id);
    } else {
      // As JSON spells a string, so that spaces and line ends are seen.
      const std::string bytes = tokenizer.token_bytes(id);
      out += std::to_string(id) + "\t" +
             nlohmann::json(bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
             "\n";
    }
  }
  if (flags.ids) out += "\n";
  return out;
}

}  // namespace

int tokenize_command(Arguments arguments) {
  TokenizeFlags own;
  Flags flags(
      "tokenize", "-m DIR [--ids] TEXT",
      "Shows the tokens of a text, one a line with its id and its text. Control tokens that\n"
      "are written out in TEXT, such as <|im_end|>, are read as what they are.");
  flags.add_positional("TEXT", own.text, "the text; - reads it from standard input", true);
  flags.add("-m,--model", "PATH", own.model,
            "folder or GGUF file of the model (default: $TANDEM_MODEL or storyteller)");
  flags.add("--ids", own.ids, "print just the ids, in one line, separated by commas");
  flags.add("--special", own.special, "add the tokens that the model wants around a text (BOS)");
  flags.add("--user", own.user,
            "read TEXT as a user's message: no part of it becomes a control token");
  flags.add("--json", own.json, "print one JSON object");
  flags.add_example("tandem tokenize \"Once upon a time\"");
  flags.add_example("tandem logits --tokens \"$(tandem tokenize --ids 'Once upon a time')\"");
  if (const auto code = flags.parse(arguments)) return *code;
  const auto out = tokenize(own);
  if (!out.ok()) return fail("tokenize", out.error(), own.json);
  write_out(*out);
  return kSuccess;
}

}  // namespace tandem::cli
