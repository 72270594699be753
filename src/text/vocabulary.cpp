#include "text/vocabulary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "text/scanner.h"
#include "text/string_table.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace tandem::text {
namespace {

constexpr std::string_view kSpace = "\u2581";
// Every way to cut a token in two is looked at, so its length counts twice.
constexpr size_t kMaxScoredBytes = 1024;

/// How text is cut before merging. Patterns are applied one after the other, each to the pieces
/// that the one before left.
struct Splitter {
  std::string_view name;
  std::array<std::string_view, 4> patterns{};
  bool ignore_merges = false;
  bool add_bos = false;
};

constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view kNumber = R"(\p{N}+)";
constexpr std::string_view kThree = "[0-9][0-9][0-9]";

/// Names of tokenizer.ggml.pre. Source: llama.cpp (src/llama-vocab.cpp) for the names, the models'
/// own tokenizer.json for the patterns.
std::span<const Splitter> splitters() {
  static const std::string_view gpt2 = scanner_pattern(Scanner::kGpt2);
  static const std::string_view llama3 = scanner_pattern(Scanner::kLlama3);
  static const std::string_view qwen2 = scanner_pattern(Scanner::kQwen2);
  static const std::string_view qwen35 = scanner_pattern(Scanner::kQwen35);
  static const std::string_view o200k = scanner_pattern(Scanner::kO200k);
  static const std::string_view tekken = scanner_pattern(Scanner::kTekken);
  static const std::string_view digits3 = scanner_pattern(Scanner::kDigits3);
  static const std::string_view cjk = scanner_pattern(Scanner::kCjk);
  static const std::string_view deepseek = scanner_pattern(Scanner::kDeepseekText);
  static const std::array kSplitters{
      Splitter{"default", {kPunctuation, gpt2, kNumber, kThree}},
      Splitter{"llama-bpe", {llama3}, true, true},
      Splitter{"llama3", {llama3}, true, true},
      Splitter{"llama-v3", {llama3}, true, true},
      Splitter{"falcon3", {llama3}, true, true},
      Splitter{"lfm2", {llama3}, true, true},
      Splitter{"pixtral", {llama3}, true, true},
      Splitter{"dbrx", {llama3}},
      Splitter{"smaug-bpe", {llama3}},
      Splitter{"glm4", {llama3}},
      Splitter{"chatglm-bpe", {llama3}},
      Splitter{"gpt-2", {gpt2}},
      Splitter{"phi-2", {gpt2}},
      Splitter{"olmo", {gpt2}},
      Splitter{"mpt", {gpt2}},
      Splitter{"exaone4", {gpt2}},
      Splitter{"granite-docling", {gpt2}},
      Splitter{"smollm", {kDigit, gpt2}},
      Splitter{"starcoder", {kDigit, gpt2}},
      Splitter{"refact", {kDigit, gpt2}},
      Splitter{"command-r", {kDigit, gpt2}},
      Splitter{"codeshell", {kDigit, gpt2}},
      Splitter{"exaone", {kDigit, gpt2}},
      Splitter{"qwen2", {qwen2}},
      Splitter{"deepseek-r1-qwen", {qwen2}},
      Splitter{"stablelm2", {qwen2}},
      Splitter{"hunyuan", {qwen2}},
      Splitter{"megrez", {qwen2}},
      Splitter{"qwen35", {qwen35}},
      Splitter{"tekken", {tekken}, true, true},
      Splitter{"gpt-4o", {o200k}},
      Splitter{"llama4", {o200k}},
      Splitter{"deepseek-v3", {digits3, cjk, deepseek}},
  };
  return kSplitters;
}

std::string in_quotes(std::string_view text) {
  return "\"" + to_valid_utf8(text.substr(0, 60)) + (text.size() > 60 ? "…\"" : "\"");
}

class SpecMaker {
 public:
  explicit SpecMaker(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), table_(vocabulary.tokens.size()) {}

  Result<TokenizerSpec> run() {
    TANDEM_TRY(check());
    TANDEM_TRY(read_tokens());
    const bool scores = vocabulary_.model == Vocabulary::Model::kScores;
    TANDEM_TRY(scores ? use_scores() : use_merges());
    return std::move(spec_);
  }

 private:
  [[nodiscard]] Status check() const {
    const size_t count = vocabulary_.tokens.size();
    if (count == 0 || count > static_cast<size_t>(kMaxTokenId)) {
      return invalid("expected 1 to " + std::to_string(kMaxTokenId) + " tokens, found " +
                     std::to_string(count));
    }
    if (vocabulary_.kinds.size() != count) {
      return invalid("expected a type for each of " + std::to_string(count) + " tokens, found " +
                     std::to_string(vocabulary_.kinds.size()));
    }
    for (const auto& [name, id] :
         {std::pair{"bos", vocabulary_.bos_id}, std::pair{"eos", vocabulary_.eos_id},
          std::pair{"unknown", vocabulary_.unk_id}}) {
      if (id && (*id < 0 || static_cast<size_t>(*id) >= count)) {
        return invalid(std::string(name) + " token: expected an id below " + std::to_string(count) +
                       ", found " + std::to_string(*id));
      }
    }
    return {};
  }

  Status read_tokens() {
    const size_t count = vocabulary_.tokens.size();
    spec_.tokens = vocabulary_.tokens;
    spec_.known.assign(count, true);
    spec_.in_model.assign(count, false);
    for (size_t id = 0; id < count; ++id) {
      const std::string& token = spec_.tokens[id];
      if (token.size() > kMaxTokenBytes) {
        return invalid("token " + std::to_string(id) + " is longer than " +
                       std::to_string(kMaxTokenBytes) + " bytes");
      }
      const TokenKind kind = vocabulary_.kinds[id];
      const bool scores = vocabulary_.model == Vocabulary::Model::kScores;
      // Others of its kind only fill the table up ("[PAD32011]").
      const bool unknown =
          kind == TokenKind::kUnknown && vocabulary_.unk_id == static_cast<int32_t>(id);
      const bool added = kind == TokenKind::kControl || kind == TokenKind::kUserDefined || unknown;
      // Of two tokens that are spelled alike, text only ever becomes the first.
      const bool first =
          !token.empty() && table_.insert(vocabulary_.tokens[id], static_cast<int32_t>(id));
      spec_.in_model[id] =
          first && (!added || unknown || (scores && kind == TokenKind::kUserDefined));
      if (!added || !first) continue;
      AddedToken entry;
      entry.id = static_cast<int32_t>(id);
      entry.content = token;
      entry.special = kind != TokenKind::kUserDefined;
      entry.rstrip = vocabulary_.control_takes_spaces && (entry.special || token == "</s>") &&
                     token != "<s>" && token != "<unk>" && token != "<|endoftext|>";
      spec_.added.push_back(std::move(entry));
    }
    return {};
  }

  void add_ends(bool bos, bool eos) {
    if (vocabulary_.add_bos.value_or(bos) && vocabulary_.bos_id) {
      spec_.prefix_ids.push_back(*vocabulary_.bos_id);
    }
    if (vocabulary_.add_eos.value_or(eos) && vocabulary_.eos_id) {
      spec_.suffix_ids.push_back(*vocabulary_.eos_id);
    }
  }

  Status use_merges() {
    const auto known = splitters();
    const auto splitter = std::ranges::find(known, vocabulary_.splitter, &Splitter::name);
    if (splitter == known.end()) {
      std::string names;
      for (const Splitter& one : known)
        names += (names.empty() ? "" : ", ") + std::string(one.name);
      return unsupported("splitter " + in_quotes(vocabulary_.splitter) +
                         " is not known; known are " + names);
    }
    for (const std::string_view pattern : splitter->patterns) {
      if (pattern.empty()) continue;
      PreTokenizer split;
      split.pattern = {true, std::string(pattern)};
      spec_.pre_tokenizers.push_back(std::move(split));
    }
    PreTokenizer bytes;
    bytes.type = PreTokenizer::Type::kByteLevel;
    bytes.use_regex = false;
    spec_.pre_tokenizers.push_back(std::move(bytes));
    Decoder decoder;
    decoder.type = Decoder::Type::kByteLevel;
    spec_.decoders.push_back(std::move(decoder));
    spec_.ignore_merges = splitter->ignore_merges;
    add_ends(splitter->add_bos, false);
    for (size_t i = 0; i < vocabulary_.merges.size(); ++i) {
      const std::string_view line = vocabulary_.merges[i];
      const size_t space = line.find(' ', 1);
      const std::string where = "merge " + std::to_string(i) + ", " + in_quotes(line);
      if (line.empty() || space == std::string_view::npos) {
        return invalid(where + ": expected two tokens with a space between");
      }
      Merge merge;
      merge.left = table_.find(line.substr(0, space));
      merge.right = table_.find(line.substr(space + 1));
      merge.result =
          table_.find(std::string(line.substr(0, space)) + std::string(line.substr(space + 1)));
      if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
        return invalid(where + ": expected tokens of the vocabulary that make one of it");
      }
      spec_.merges.push_back(merge);
    }
    return {};
  }

  Status use_scores() {
    if (vocabulary_.scores.size() != vocabulary_.tokens.size()) {
      return invalid("expected a score for each of " + std::to_string(vocabulary_.tokens.size()) +
                     " tokens, found " + std::to_string(vocabulary_.scores.size()));
    }
    TANDEM_TRY(list_pairs());
    spec_.byte_fallback = true;
    spec_.fuse_unk = true;
    spec_.unk_id = vocabulary_.unk_id;
    const bool prefix = vocabulary_.add_space_prefix.value_or(true);
    if (prefix) {
      Normalizer prepend;
      prepend.type = Normalizer::Type::kPrepend;
      prepend.content = kSpace;
      spec_.normalizers.push_back(std::move(prepend));
    }
    Normalizer replace;
    replace.type = Normalizer::Type::kReplace;
    replace.pattern = {false, " "};
    replace.content = kSpace;
    spec_.normalizers.push_back(std::move(replace));
    Decoder space;
    space.type = Decoder::Type::kReplace;
    space.pattern = {false, std::string(kSpace)};
    space.content = " ";
    spec_.decoders.push_back(std::move(space));
    Decoder bytes;
    bytes.type = Decoder::Type::kByteFallback;
    spec_.decoders.push_back(bytes);
    Decoder fuse;
    fuse.type = Decoder::Type::kFuse;
    spec_.decoders.push_back(fuse);
    if (prefix) {
      Decoder strip;
      strip.type = Decoder::Type::kStrip;
      strip.content = " ";
      strip.start = 1;
      spec_.decoders.push_back(std::move(strip));
    }
    add_ends(true, false);
    return {};
  }

  /// Any two tokens that together spell a third may become it, the best score first.
  Status list_pairs() {
    std::vector<float> scores;
    for (size_t id = 0; id < spec_.tokens.size(); ++id) {
      if (!std::isfinite(vocabulary_.scores[id])) {
        return invalid("token " + std::to_string(id) + ": expected a finite score");
      }
      const TokenKind kind = vocabulary_.kinds[id];
      if (!spec_.in_model[id] || kind == TokenKind::kByte || kind == TokenKind::kUnused ||
          kind == TokenKind::kUnknown) {
        continue;
      }
      const std::string& token = spec_.tokens[id];
      if (token.size() > kMaxScoredBytes) continue;
      for (size_t cut = 1; cut < token.size(); ++cut) {
        if ((static_cast<unsigned char>(token[cut]) & 0xc0) == 0x80) continue;
        const std::string_view whole(token);
        const Merge merge{table_.find(whole.substr(0, cut)), table_.find(whole.substr(cut)),
                          static_cast<int32_t>(id)};
        if (merge.left < 0 || merge.right < 0) continue;
        spec_.merges.push_back(merge);
        scores.push_back(vocabulary_.scores[id]);
      }
    }
    std::vector<float> order = scores;
    std::sort(order.begin(), order.end(), std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    for (const float score : scores) {
      const auto place = std::lower_bound(order.begin(), order.end(), score, std::greater<>());
      spec_.merge_ranks.push_back(static_cast<uint32_t>(place - order.begin()));
    }
    return {};
  }

  const Vocabulary& vocabulary_;
  StringTable table_;  ///< borrows the spellings of vocabulary_
  TokenizerSpec spec_;
};

}  // namespace

Result<TokenizerSpec> vocabulary_spec(const Vocabulary& vocabulary) {
  return SpecMaker(vocabulary).run();
}

}  // namespace tandem::text
