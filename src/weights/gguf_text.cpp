#include "weights/gguf_text.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "weights/printable.h"

namespace tandem::weights {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

// Control tokens that end a turn.
constexpr std::array<std::string_view, 12> kTurnEnds{
    "<|eot_id|>", "<|im_end|>",      "<|end|>",       "<|return|>", "<|call|>", "<end_of_turn>",
    "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|eot|>",    "<EOT>",    "</s>"};

class TextReader {
 public:
  explicit TextReader(const GgufHeader& header) : header_(header) {}

  Result<GgufText> run() {
    TANDEM_TRY(read_model());
    TANDEM_TRY(read_tokens());
    TANDEM_TRY(read_flags());
    TANDEM_TRY(read_templates());
    TANDEM_TRY(read_generation());
    return std::move(text_);
  }

 private:
  static std::string key(std::string_view name) { return std::string(kPrefix) + std::string(name); }

  Status read_model() {
    TANDEM_ASSIGN(const std::string model, header_.text(key("model")));
    if (model.empty()) {
      return Error{ErrorKind::kNotFound,
                   "key tokenizer.ggml.model: expected a tokenizer, found none in the file"};
    }
    if (model == "llama") {
      text_.vocabulary.model = text::Vocabulary::Model::kScores;
    } else if (model != "gpt2") {
      return unsupported("key tokenizer.ggml.model: " + printable(model, 40) +
                         " is not known; known are gpt2 and llama");
    }
    TANDEM_ASSIGN(text_.vocabulary.splitter, header_.text(key("pre"), "default"));
    return {};
  }

  Status read_tokens() {
    text::Vocabulary& vocabulary = text_.vocabulary;
    const GgufValue* tokens = header_.find(key("tokens"));
    const auto* list = tokens == nullptr ? nullptr : std::get_if<std::vector<std::string>>(tokens);
    if (list == nullptr) return invalid("key tokenizer.ggml.tokens: expected an array of strings");
    vocabulary.tokens = *list;
    TANDEM_TRY(read_kinds());
    if (const GgufValue* scores = header_.find(key("scores"))) {
      const auto* numbers = std::get_if<std::vector<double>>(scores);
      if (numbers == nullptr) return invalid("key tokenizer.ggml.scores: expected numbers");
      for (const double score : *numbers) vocabulary.scores.push_back(static_cast<float>(score));
    }
    if (const GgufValue* merges = header_.find(key("merges"))) {
      const auto* lines = std::get_if<std::vector<std::string>>(merges);
      if (lines == nullptr) return invalid("key tokenizer.ggml.merges: expected strings");
      vocabulary.merges = *lines;
    }
    return {};
  }

  Status read_kinds() {
    text::Vocabulary& vocabulary = text_.vocabulary;
    const GgufValue* kinds = header_.find(key("token_type"));
    if (kinds == nullptr) {
      vocabulary.kinds.assign(vocabulary.tokens.size(), text::TokenKind::kNormal);
      return {};
    }
    std::vector<int64_t> numbers;
    if (const auto* with_sign = std::get_if<std::vector<int64_t>>(kinds)) {
      numbers = *with_sign;
    } else if (const auto* plain = std::get_if<std::vector<uint64_t>>(kinds)) {
      for (const uint64_t number : *plain) {
        numbers.push_back(static_cast<int64_t>(std::min<uint64_t>(number, 1U << 20)));
      }
    } else {
      return invalid("key tokenizer.ggml.token_type: expected integers");
    }
    for (const int64_t number : numbers) {
      if (number < 0 || number > 6) {
        return invalid("key tokenizer.ggml.token_type: expected types from 1 to 6, found " +
                       std::to_string(number));
      }
      vocabulary.kinds.push_back(number == 0 ? text::TokenKind::kNormal
                                             : static_cast<text::TokenKind>(number));
    }
    return {};
  }

  Result<std::optional<int32_t>> token(std::string_view name) const {
    // The largest 32-bit number stands for "none".
    TANDEM_ASSIGN(const auto id, header_.integer(key(name), 0, UINT32_MAX));
    if (!id || *id == UINT32_MAX) return std::optional<int32_t>();
    if (*id >= text_.vocabulary.tokens.size()) {
      return invalid("key " + key(name) + ": expected an id below " +
                     std::to_string(text_.vocabulary.tokens.size()) + ", found " +
                     std::to_string(*id));
    }
    return std::optional<int32_t>(static_cast<int32_t>(*id));
  }

  Status read_flags() {
    text::Vocabulary& vocabulary = text_.vocabulary;
    const bool scores = vocabulary.model == text::Vocabulary::Model::kScores;
    TANDEM_ASSIGN(vocabulary.bos_id, token("bos_token_id"));
    TANDEM_ASSIGN(vocabulary.eos_id, token("eos_token_id"));
    TANDEM_ASSIGN(vocabulary.unk_id, token("unknown_token_id"));
    TANDEM_ASSIGN(vocabulary.add_bos, header_.flag(key("add_bos_token")));
    TANDEM_ASSIGN(vocabulary.add_eos, header_.flag(key("add_eos_token")));
    TANDEM_ASSIGN(vocabulary.add_space_prefix, header_.flag(key("add_space_prefix")));
    // What every SentencePiece vocabulary has, where the file leaves it out.
    if (scores && vocabulary.tokens.size() > 2) {
      if (!header_.find(key("bos_token_id"))) vocabulary.bos_id = 1;
      if (!header_.find(key("eos_token_id"))) vocabulary.eos_id = 2;
      if (!header_.find(key("unknown_token_id"))) vocabulary.unk_id = 0;
    }
    const GgufValue* architecture = header_.find("general.architecture");
    vocabulary.control_takes_spaces =
        scores && architecture != nullptr && *architecture == GgufValue(std::string("phi3"));
    return {};
  }

  [[nodiscard]] std::string spelled(std::optional<int32_t> id) const {
    return id ? text_.vocabulary.tokens[static_cast<size_t>(*id)] : std::string();
  }

  Status read_templates() {
    constexpr std::string_view kTemplate = "tokenizer.chat_template";
    for (const GgufPair& pair : header_.pairs) {
      if (!pair.key.starts_with(kTemplate)) continue;
      const std::string_view rest = std::string_view(pair.key).substr(kTemplate.size());
      const auto* source = std::get_if<std::string>(&pair.value);
      if (source == nullptr) continue;  // tokenizer.chat_templates lists the names of the others
      if (rest.empty()) {
        text_.chat.templates["default"] = *source;
      } else if (rest.starts_with('.')) {
        text_.chat.templates[std::string(rest.substr(1))] = *source;
      }
    }
    text_.chat.bos_token = spelled(text_.vocabulary.bos_id);
    text_.chat.eos_token = spelled(text_.vocabulary.eos_id);
    const std::string unknown = spelled(text_.vocabulary.unk_id);
    if (!unknown.empty()) text_.chat.tokens["unk_token"] = unknown;
    TANDEM_ASSIGN(const auto padding, token("padding_token_id"));
    if (padding) text_.chat.tokens["pad_token"] = spelled(padding);
    return {};
  }

  void add_end(int32_t id) {
    auto& ends = text_.generation.eos_ids;
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  }

  Status read_generation() {
    text::GenerationConfig& generation = text_.generation;
    generation.bos_id = text_.vocabulary.bos_id;
    if (text_.vocabulary.eos_id) add_end(*text_.vocabulary.eos_id);
    for (const char* name : {"eot_token_id", "eom_token_id"}) {
      TANDEM_ASSIGN(const auto id, token(name));
      if (id) add_end(*id);
    }
    const auto& tokens = text_.vocabulary.tokens;
    // In the format that has <|return|> and <|call|>, <|end|> is between two parts of an answer.
    const bool parts = std::ranges::find(tokens, "<|return|>") != tokens.end();
    for (size_t id = 0; id < std::min(tokens.size(), text_.vocabulary.kinds.size()); ++id) {
      const bool ends_turn = std::ranges::find(kTurnEnds, tokens[id]) != kTurnEnds.end() &&
                             text_.vocabulary.kinds[id] == text::TokenKind::kControl;
      if (ends_turn && !(parts && tokens[id] == "<|end|>")) add_end(static_cast<int32_t>(id));
    }
    TANDEM_ASSIGN(generation.temperature, header_.number("general.sampling.temp"));
    TANDEM_ASSIGN(generation.top_p, header_.number("general.sampling.top_p"));
    TANDEM_ASSIGN(generation.min_p, header_.number("general.sampling.min_p"));
    TANDEM_ASSIGN(const auto top_k, header_.integer("general.sampling.top_k", 0, INT32_MAX));
    if (top_k) generation.top_k = static_cast<uint32_t>(*top_k);
    const auto within = [](const std::optional<double>& value, double high) {
      return !value || (*value >= 0 && *value <= high);
    };
    if (!within(generation.temperature, 100) || !within(generation.top_p, 1) ||
        !within(generation.min_p, 1)) {
      return invalid(
          "key general.sampling: expected a temperature from 0 to 100, top_p and min_p "
          "from 0 to 1");
    }
    return {};
  }

  const GgufHeader& header_;
  GgufText text_;
};

}  // namespace

Result<GgufText> gguf_text(const GgufHeader& header) {
  return TextReader(header).run();
}

}  // namespace tandem::weights
