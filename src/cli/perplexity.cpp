// tandem perplexity: how well a model predicts a text.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/session.h"

namespace tandem::cli {
namespace {

struct PerplexityFlags {
  ModelFlags model;
  std::string text;
  uint32_t window = 512;
  bool json = false;
};

struct Perplexity {
  uint64_t tokens = 0;  ///< of the whole text
  uint64_t windows = 0;
  uint64_t predicted = 0;  ///< tokens whose probability was looked at
  double sum = 0;          ///< of their negative log-likelihoods, natural logarithm

  [[nodiscard]] double mean() const { return sum / static_cast<double>(predicted); }
};

Result<std::string> read_text(const std::string& path) {
  constexpr uint64_t kLimit = text::Tokenizer::kMaxTextBytes;
  if (path == "-") return read_input(kLimit);
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorKind::kNotFound, path + ": can't open the file"};
  std::string text;
  std::vector<char> buffer(1 << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
         file.gcount() > 0) {
    text.append(buffer.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > kLimit) return invalid(path + ": more than " + bytes_text(kLimit));
  }
  if (file.bad()) return Error{ErrorKind::kIo, path + ": can't read the file"};
  return text;
}

/// -log softmax(logits)[token], in binary64: a report, not part of the arithmetic contract.
double negative_log_likelihood(std::span<const float> logits, uint32_t token) {
  const double greatest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - greatest);
  return std::log(sum) + greatest - logits[token];
}

Result<Perplexity> measure(const PerplexityFlags& flags) {
  TANDEM_ASSIGN(const std::string content, read_text(flags.text));
  TANDEM_ASSIGN(Model model, Model::open(flags.model.model));
  TANDEM_ASSIGN(const text::Tokenizer tokenizer, open_tokenizer(model.checkpoint->folder()));
  TANDEM_ASSIGN(const auto ids, tokenizer.encode(content));
  const std::vector<uint32_t> tokens(ids.begin(), ids.end());
  Perplexity result;
  result.tokens = tokens.size();
  result.windows = tokens.size() / flags.window;
  if (result.windows == 0) {
    return invalid(flags.text + ": has " + std::to_string(tokens.size()) +
                   " tokens, less than one window of " + std::to_string(flags.window));
  }
  if (flags.window > model.config.context) {
    return invalid("a window of " + std::to_string(flags.window) +
                   " is longer than the context of " + std::to_string(model.config.context));
  }
  Session::Options options;
  options.context = flags.window;
  options.batch = 64;
  TANDEM_ASSIGN(Session session, Session::open(flags.model, std::move(model), options));
  const uint32_t vocab = session.config().vocab;
  std::vector<float> logits;
  ProgressLine line;
  for (uint64_t w = 0; w < result.windows; ++w) {
    const auto part = std::span(tokens).subspan(w * flags.window, flags.window);
    TANDEM_TRY(session.ring().rollback(0));
    // The last token of a window predicts nothing that is looked at.
    const auto inputs = part.first(part.size() - 1);
    TANDEM_ASSIGN(model::HiddenStates hidden, session.ends().embed(inputs, 0));
    TANDEM_ASSIGN(
        hidden, session.ring().forward(std::move(hidden), 0, static_cast<uint32_t>(inputs.size())));
    for (uint32_t first = 0; first < hidden.tokens(); first += session.batch()) {
      const uint32_t count = std::min(session.batch(), hidden.tokens() - first);
      TANDEM_TRY(session.ends().logits(hidden, first, count, logits));
      for (uint32_t i = 0; i < count; ++i) {
        result.sum += negative_log_likelihood(std::span(logits).subspan(uint64_t{i} * vocab, vocab),
                                              part[first + i + 1]);
        ++result.predicted;
      }
    }
    line.show("windows, perplexity so far " + number(std::exp(result.mean()), 3), w + 1,
              result.windows);
  }
  return result;
}

}  // namespace

int perplexity_command(Arguments arguments) {
  PerplexityFlags own;
  own.model.table = false;
  Flags flags(
      "perplexity", "-m DIR --text FILE [--window 512] [FLAGS]",
      "Measures how well a model predicts a text: exp of the mean negative log-likelihood of\n"
      "tokens 2 to N of each window of N, without overlap; an incomplete last one is left out.");
  own.model.add_all(flags);
  flags.add("--text", "FILE", own.text, "the text; - reads it from standard input");
  flags.add("--window", "N", own.window, 2, 1'000'000, "tokens in a window (default: 512)");
  flags.add("--json", own.json, "print one JSON object");
  flags.add_example("tandem perplexity -m models/storyteller --text book.txt");
  flags.add_example("tandem perplexity --text book.txt --weights 4 --local 2");
  if (const auto code = flags.parse(arguments)) return *code;
  if (own.text.empty()) return flags.wrong_use("--text is missing");
  if (const Status status = own.model.check(); !status.ok()) {
    return flags.wrong_use(status.error().message);
  }
  const auto result = measure(own);
  if (!result.ok()) return fail("perplexity", result.error(), own.json);
  if (own.json) {
    nlohmann::ordered_json object;
    object["perplexity"] = std::exp(result->mean());
    object["mean_nll"] = result->mean();
    object["tokens"] = result->tokens;
    object["window"] = own.window;
    object["windows"] = result->windows;
    object["predicted_tokens"] = result->predicted;
    write_out(object.dump() + "\n");
  } else {
    write_out("perplexity " + number(std::exp(result->mean()), 4) + "\n");
    note("mean negative log-likelihood " + number(result->mean(), 6) + " over " +
         std::to_string(result->predicted) + " tokens in " + std::to_string(result->windows) +
         " windows\n");
  }
  return kSuccess;
}

}  // namespace tandem::cli
