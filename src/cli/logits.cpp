// tandem logits: a model's logits for given tokens, for comparison with other programs, machines
// and splits.
#include <algorithm>
#include <fstream>

#include "base/hash.h"
#include "cli/commands.h"
#include "cli/hidden.h"
#include "cli/session.h"
#include "weights/safetensors.h"

namespace tandem::cli {
namespace {

constexpr uint64_t kMaxTokensFile = uint64_t{64} << 20;

struct LogitsFlags {
  ModelFlags model;
  std::string tokens;
  std::string tokens_file;
  uint32_t pass_width = 32;
  std::string out;
  bool hidden = false;
};

/// Ids separated by commas or white space.
Result<std::vector<uint32_t>> parse_tokens(const std::string& text, uint32_t vocab,
                                           uint32_t context) {
  std::vector<uint32_t> tokens;
  size_t i = 0;
  constexpr std::string_view kSeparators = ", \t\r\n";
  for (;;) {
    i = text.find_first_not_of(kSeparators, i);
    if (i == std::string::npos) break;
    const size_t end = std::min(text.find_first_of(kSeparators, i), text.size());
    const std::string word = text.substr(i, end - i);
    i = end;
    if (word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos) {
      return invalid("'" + word.substr(0, 40) + "' is no token id");
    }
    const auto id = static_cast<uint32_t>(std::stoul(word));
    if (id >= vocab) {
      return invalid("token " + word + " is outside the vocabulary of " + std::to_string(vocab));
    }
    if (tokens.size() == context) {
      return invalid("more tokens than the model's context of " + std::to_string(context));
    }
    tokens.push_back(id);
  }
  if (tokens.empty()) return invalid("no tokens given");
  return tokens;
}

Result<std::string> read_tokens(const LogitsFlags& flags) {
  if (flags.tokens_file.empty()) return flags.tokens;
  if (flags.tokens_file == "-") return read_input(kMaxTokensFile);
  std::ifstream file(flags.tokens_file, std::ios::binary | std::ios::ate);
  if (!file) return Error{ErrorKind::kNotFound, flags.tokens_file + ": can't open the file"};
  const auto size = static_cast<uint64_t>(file.tellg());
  if (size > kMaxTokensFile) {
    return invalid(flags.tokens_file + ": more than " + bytes_text(kMaxTokensFile));
  }
  std::string text(size, '\0');
  file.seekg(0);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    return Error{ErrorKind::kIo, flags.tokens_file + ": can't read the file"};
  }
  return text;
}

class LogitsRun {
 public:
  LogitsRun(Session& session, const LogitsFlags& flags, std::vector<uint32_t> tokens)
      : session_(session), flags_(flags), tokens_(std::move(tokens)) {}

  /// The hash of all logits' bytes; writes the file if one is asked for.
  Result<Digest> run() {
    const model::ModelConfig& config = session_.config();
    std::unique_ptr<weights::SafetensorsWriter> writer;
    if (!flags_.out.empty()) {
      std::vector<weights::StoredTensor> tensors{
          {"logits", weights::StoredType::kF32, {tokens_.size(), config.vocab}, 0, 0}};
      if (flags_.hidden) {
        tensors.push_back({"hidden",
                           weights::StoredType::kF32,
                           {config.layers + uint64_t{1}, tokens_.size(), config.hidden_size},
                           0,
                           0});
      }
      TANDEM_ASSIGN(writer, weights::SafetensorsWriter::create(flags_.out, tensors));
    }
    Sha256 hash;
    std::vector<float> logits;
    ProgressLine line;
    // As many tokens a call as the ring keeps under way, in frames of the width that was asked for.
    const size_t chunk = size_t{session_.batch()} * session_.in_flight();
    for (size_t begin = 0; begin < tokens_.size(); begin += chunk) {
      const auto part = std::span(tokens_).subspan(begin, std::min(chunk, tokens_.size() - begin));
      const auto position = static_cast<uint32_t>(begin);
      TANDEM_ASSIGN(model::HiddenStates hidden, session_.ends().embed(part, position));
      TANDEM_ASSIGN(hidden, session_.ring().forward(std::move(hidden), position,
                                                    static_cast<uint32_t>(part.size())));
      for (uint32_t first = 0; first < hidden.tokens(); first += session_.batch()) {
        const uint32_t count = std::min(session_.batch(), hidden.tokens() - first);
        TANDEM_TRY(session_.ends().logits(hidden, first, count, logits));
        const auto bytes = std::as_bytes(std::span(logits));
        hash.update(bytes);
        if (writer) TANDEM_TRY(writer->write(bytes));
      }
      line.show("tokens", begin + part.size(), tokens_.size());
    }
    if (writer) {
      if (flags_.hidden) {
        TANDEM_TRY(write_hidden(session_.model(), session_.ends(), session_.stage_options(),
                                tokens_, session_.batch(), *writer));
      }
      TANDEM_TRY(writer->finish());
    }
    return hash.digest();
  }

 private:
  Session& session_;
  const LogitsFlags& flags_;
  std::vector<uint32_t> tokens_;
};

Result<Digest> compute(const LogitsFlags& flags) {
  TANDEM_ASSIGN(const std::string text, read_tokens(flags));
  TANDEM_ASSIGN(Model model, Model::open(flags.model.model));
  TANDEM_ASSIGN(std::vector<uint32_t> tokens,
                parse_tokens(text, model.config.vocab, model.config.context));
  Session::Options options;
  options.context = static_cast<uint32_t>(tokens.size());
  options.batch = flags.pass_width;
  TANDEM_ASSIGN(Session session, Session::open(flags.model, std::move(model), options));
  return LogitsRun(session, flags, std::move(tokens)).run();
}

}  // namespace

int logits_command(Arguments arguments) {
  LogitsFlags own;
  own.model.table = false;
  Flags flags(
      "logits", "-m DIR --tokens 5,7,9 [FLAGS]",
      "Writes the logits of given tokens, float32 [tokens, vocab], and prints the SHA-256 of\n"
      "their bytes. It is the same on every device, in every split, at every pass width.");
  own.model.add_all(flags);
  flags.add("--tokens", "5,7,9", own.tokens, "token ids");
  flags.add("--tokens-file", "FILE", own.tokens_file,
            "file of ids, separated by commas or space; - is standard input");
  flags.add("--pass-width", "W", own.pass_width, 1, 4096, "tokens in one pass (default: 32)");
  flags.add("--hidden", own.hidden, "also write 'hidden' [layers + 1, tokens, hidden_size]");
  flags.add("--out", "FILE", own.out, "safetensors file to write");
  flags.add_example("tandem logits --tokens 1,439,271 --out logits.safetensors");
  flags.add_example("tandem logits --tokens-file ids.txt --local 3 --pass-width 1");
  if (const auto code = flags.parse(arguments)) return *code;
  if (own.tokens.empty() == own.tokens_file.empty()) {
    return flags.wrong_use("expected either --tokens or --tokens-file");
  }
  if (own.hidden && own.out.empty()) return flags.wrong_use("--hidden needs --out");
  if (own.hidden && (own.model.local != 0 || !own.model.workers.empty())) {
    return flags.wrong_use("--hidden runs in this process, without --workers or --local");
  }
  if (const Status status = own.model.check(); !status.ok()) {
    return flags.wrong_use(status.error().message);
  }
  const auto digest = compute(own);
  if (!digest.ok()) return fail("logits", digest.error());
  write_out(hex(*digest) + "\n");
  return kSuccess;
}

}  // namespace tandem::cli
