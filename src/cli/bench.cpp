// tandem bench: the speed of a model, and how near decoding comes to the memory's.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "arithmetic/draw.h"
#include "cli/answer.h"
#include "cli/bandwidth.h"
#include "cli/commands.h"
#include "cli/peak.h"
#include "cli/profile_report.h"
#include "cli/session.h"
#include "kernels/kernels.h"
#include "model/state_stretch.h"

namespace tandem::cli {
namespace {

struct BenchFlags {
  ModelFlags model;
  uint32_t prompt = 512;
  uint32_t generate = 64;
  uint32_t depth = 0;  ///< positions held before the prompt
  uint32_t repeat = 3;
  bool profile = false;
  bool json = false;
};

/// Tokens of a stretch: memory is read before and after each, since a virtual machine's share of it
/// may change at any time. An answer's rate over reads that are seconds away says little there.
constexpr uint32_t kStretch = 16;

/// What one round's answer took, so that its parts add up.
struct Round {
  double prefill = 0;  ///< tokens a second
  double decode = 0;   ///< tokens a second
  double pass_ms = 0;
  std::vector<StageLine> lines;
};

struct Bench {
  double prefill = 0;    ///< tokens a second, median
  Round round;           ///< the one of the median decode rate
  double bandwidth = 0;  ///< bytes a second, median of all reads
  double share = 0;      ///< of it, median of all stretches
  uint64_t bytes_per_token = 0;
  std::optional<ProfileReport> profile;
};

/// What a decode pass reads: every layer's weights, of experts those that a token uses, the head,
/// and the positions of the KV cache that each layer sees, on average over the tokens generated.
uint64_t bytes_per_token(Session& session, const BenchFlags& flags) {
  const model::ModelConfig& config = session.config();
  // An embedding of its own is not read through, and neither are the positions of GPT-2.
  model::ModelConfig head = config;
  head.tied_embeddings = true;
  head.learned_positions = false;
  uint64_t bytes = model::ends_bytes(head, session.stage_options().weights);
  bytes += model::bytes_read(config, session.stage_options().weights, 0, config.layers);
  const uint64_t positions = uint64_t{flags.depth} + flags.prompt + flags.generate / 2;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    const uint64_t window = config.window[layer];
    const uint64_t seen = window == 0 ? positions : std::min(positions, window);
    bytes +=
        seen * model::kv_bytes_per_position(config, layer, layer + 1, session.stage_options().kv);
  }
  return bytes;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The instruction set that `flag` stands for here.
Result<std::string> isa_used(const std::string& flag) {
  TANDEM_ASSIGN(const auto backend,
                kernels::make_cpu_backend(flag, std::make_shared<ThreadPool>(1)));
  return std::string(backend->isa());
}

/// Fills the caches with `depth` positions without running that many: what a short prompt left is
/// repeated. Returns the tokens that the conversation takes them for.
Result<std::vector<uint32_t>> deepen(ring::Conversation& conversation, const Session& session,
                                     uint32_t depth) {
  constexpr uint32_t kRun = 256;
  ring::GenerateRequest request;
  request.max_tokens = 1;
  for (uint32_t i = 0; i < std::min(depth, kRun); ++i) {
    request.prompt.push_back(
        static_cast<uint32_t>(arithmetic::random_at(1, i) % session.config().vocab));
  }
  TANDEM_TRY(conversation.generate(request));
  const model::StateIdentity own;  // of this process alone
  TANDEM_ASSIGN(model::StateFile file, conversation.save(own));
  const size_t run = file.tokens.size();
  TANDEM_ASSIGN(file.state, model::stretch_state(file.state, session.config(), depth));
  for (uint32_t i = static_cast<uint32_t>(run); i < depth; ++i) {
    file.tokens.push_back(file.tokens[i % run]);
  }
  TANDEM_TRY(conversation.load(file, own));
  return std::move(file.tokens);
}

/// Runs an answer in stretches and reads memory between them.
class Stretches {
 public:
  Stretches(ReadBandwidth& memory, uint64_t bytes_per_token)
      : memory_(memory), bytes_per_token_(static_cast<double>(bytes_per_token)) {}

  /// Answers `prompt` with `tokens` tokens, at least 2.
  Result<Round> run(ring::Conversation& conversation, Session& session,
                    std::vector<uint32_t> prompt, uint32_t tokens) {
    Round result;
    double seconds = 0;
    uint32_t passes = 0;
    ring::GenerateRequest request;
    request.prompt = std::move(prompt);
    for (uint32_t left = tokens; left != 0;) {
      // A stretch has a pass at least, which follows its first choice.
      request.max_tokens = left < kStretch + 2 ? left : kStretch;
      left -= request.max_tokens;
      TANDEM_ASSIGN(const ring::Answer answer, conversation.generate(request));
      if (answer.finish == ring::Finish::kCancelled) {
        return Error{ErrorKind::kCancelled, "stopped"};
      }
      request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
      if (passes == 0) result.prefill = answer.prefill_tokens_per_second();
      read(answer);
      passes += answer.decode_passes;
      seconds += answer.decode_seconds;
      result.pass_ms += answer.pass_ms * answer.decode_passes;
      add(stage_lines(session, answer.head_ms), answer.decode_passes, result.lines);
    }
    result.decode = passes / seconds;
    result.pass_ms /= passes;
    for (StageLine& stage : result.lines) {
      stage.ms_per_pass /= passes;
      stage.hop_ms /= passes;
    }
    return result;
  }

  /// Bytes a second, and the share of it that each stretch reached.
  [[nodiscard]] const std::vector<double>& reads() const { return reads_; }
  [[nodiscard]] const std::vector<double>& shares() const { return shares_; }

 private:
  /// Adds what `passes` passes took to `sums`.
  static void add(std::vector<StageLine> stretch, uint32_t passes, std::vector<StageLine>& sums) {
    for (size_t i = 0; i < stretch.size(); ++i) {
      stretch[i].ms_per_pass *= passes;
      stretch[i].hop_ms *= passes;
      if (i < sums.size()) {
        stretch[i].ms_per_pass += sums[i].ms_per_pass;
        stretch[i].hop_ms += sums[i].hop_ms;
      }
    }
    sums = std::move(stretch);
  }

  void read(const ring::Answer& answer) {
    if (reads_.empty()) reads_.push_back(memory_.measure());
    const double now = memory_.measure();
    const double mean = (reads_.back() + now) / 2;
    reads_.push_back(now);
    shares_.push_back(mean > 0 ? bytes_per_token_ * answer.decode_tokens_per_second() / mean : 0);
  }

  ReadBandwidth& memory_;
  double bytes_per_token_;
  std::vector<double> reads_;
  std::vector<double> shares_;
};

Result<Bench> measure(const BenchFlags& flags) {
  TANDEM_ASSIGN(Model model, Model::open(flags.model.model));
  const uint64_t positions = uint64_t{flags.depth} + flags.prompt + flags.generate;
  if (positions > model.config.context) {
    return invalid(std::to_string(positions) + " tokens do not fit the model's context of " +
                   std::to_string(model.config.context) +
                   "; use a smaller --depth, --prompt or --generate");
  }
  Session::Options options;
  options.context = static_cast<uint32_t>(positions);
  if (flags.profile) options.profile = std::make_shared<kernels::Profile>();
  TANDEM_ASSIGN(Session session, Session::open(flags.model, std::move(model), options));
  session.finish_cache();  // or it would be written while something is measured
  ring::Conversation conversation = session.conversation(nullptr);
  Bench result;
  std::vector<uint32_t> before;
  if (flags.depth != 0) {
    TANDEM_ASSIGN(before, deepen(conversation, session, flags.depth));
  }
  ThreadPool pool(flags.model.local == 0
                      ? flags.model.host_threads()
                      : std::min(cores(), flags.model.local * flags.model.local_threads()));
  ReadBandwidth memory(pool);
  result.bytes_per_token = bytes_per_token(session, flags);
  std::vector<double> prefill;
  std::vector<double> reads;
  std::vector<double> shares;
  std::vector<Round> rounds;
  ProgressLine line;
  for (uint32_t round = 0; round <= flags.repeat; ++round) {
    line.show("rounds", round, flags.repeat + 1);
    Stretches stretches(memory, result.bytes_per_token);
    std::vector<uint32_t> prompt = before;
    // Other tokens each round, so that nothing of the round before can be used again.
    for (uint32_t i = 0; i < flags.prompt; ++i) {
      prompt.push_back(
          static_cast<uint32_t>(arithmetic::random_at(round, i) % session.config().vocab));
    }
    // The first round warms up and is short: pages, caches, the links' buffers.
    const uint32_t tokens = round == 0 ? std::min(flags.generate, 8U) : flags.generate;
    TANDEM_ASSIGN(Round one, stretches.run(conversation, session, std::move(prompt), tokens));
    if (round == 0) {
      if (options.profile != nullptr) options.profile->reset();
      continue;
    }
    prefill.push_back(one.prefill);
    reads.insert(reads.end(), stretches.reads().begin(), stretches.reads().end());
    shares.insert(shares.end(), stretches.shares().begin(), stretches.shares().end());
    rounds.push_back(std::move(one));
  }
  line.clear();
  result.prefill = median(prefill);
  result.bandwidth = median(reads);
  result.share = median(shares);
  std::sort(rounds.begin(), rounds.end(),
            [](const Round& a, const Round& b) { return a.decode < b.decode; });
  result.round = std::move(rounds[rounds.size() / 2]);
  if (options.profile != nullptr) {
    TANDEM_ASSIGN(const std::string isa, isa_used(flags.model.isa));
    result.profile = ProfileReport{options.profile->times(true), options.profile->times(false),
                                   result.bandwidth, multiply_add_peak(pool, isa)};
  }
  return result;
}

std::string json_text(const Bench& bench) {
  nlohmann::ordered_json object;
  object["prefill_tokens_per_second"] = bench.prefill;
  object["decode_tokens_per_second"] = bench.round.decode;
  object["bytes_per_token"] = bench.bytes_per_token;
  object["read_bandwidth_bytes_per_second"] = bench.bandwidth;
  object["bandwidth_share"] = bench.share;
  object["ms_per_pass"] = bench.round.pass_ms;
  object["stages"] = nlohmann::ordered_json::array();
  for (const StageLine& line : bench.round.lines) {
    object["stages"].push_back({{"peer", line.peer},
                                {"layers", line.layers},
                                {"bytes", line.bytes},
                                {"ms_per_pass", line.ms_per_pass},
                                {"hop_ms", line.hop_ms}});
  }
  if (bench.profile) object["profile"] = profile_json(*bench.profile);
  return object.dump() + "\n";
}

std::string text(const Bench& bench, const BenchFlags& flags) {
  double computing = 0;
  std::vector<std::vector<std::string>> rows{{"device", "layers", "ms a pass", "ms a hop"}};
  for (const StageLine& line : bench.round.lines) {
    computing += line.ms_per_pass;
    rows.push_back({line.peer, line.layers, number(line.ms_per_pass, 3),
                    line.peer == "host" ? "" : number(line.hop_ms, 3)});
  }
  return table(rows, {false, false, true, true}) + "prefill    " + number(bench.prefill, 1) +
         " tokens/s (" + std::to_string(flags.prompt) + " tokens)\ndecode     " +
         number(bench.round.decode, 1) + " tokens/s (" + std::to_string(flags.generate) +
         " tokens), a pass " + number(bench.round.pass_ms, 3) + " ms, of which " +
         number(computing, 3) + " ms computing\nper token  " + bytes_text(bench.bytes_per_token) +
         " read\nmemory     " + number(bench.bandwidth / 1e9, 1) + " GB/s read by this machine, " +
         number(100 * bench.share, 1) + " % of it reached by decoding\n" +
         (bench.profile ? profile_text(*bench.profile) : "");
}

}  // namespace

int bench_command(Arguments arguments) {
  BenchFlags own;
  Flags flags(
      "bench", "-m DIR [--prompt 512] [--generate 64] [FLAGS]",
      "Measures a model's speed: prompt and answer, the median of several rounds, and which\n"
      "share of this machine's memory bandwidth decoding reaches.");
  own.model.add_all(flags);
  flags.add("--prompt", "N", own.prompt, 1, 1'000'000, "tokens of the prompt (default: 512)");
  flags.add("--generate", "N", own.generate, 2, 1'000'000, "tokens to generate (default: 64)");
  flags.add("--depth", "N", own.depth, 1, 1'000'000,
            "positions held before the prompt, copies of a short one's");
  flags.add("--repeat", "N", own.repeat, 1, 100, "rounds (default: 3)");
  flags.add("--profile", own.profile, "show what each part of a pass takes, beside the limits");
  flags.add("--json", own.json, "print one JSON object");
  flags.add_example("tandem bench");
  flags.add_example("tandem bench -m models/storyteller --local 2 --threads 1 --json");
  if (const auto code = flags.parse(arguments)) return *code;
  if (const Status status = own.model.check(); !status.ok()) {
    return flags.wrong_use(status.error().message);
  }
  if (own.profile && (own.model.local != 0 || !own.model.workers.empty())) {
    return flags.wrong_use("--profile looks at one process: it goes without --local and --workers");
  }
  if (own.depth != 0 && (own.model.local != 0 || !own.model.workers.empty())) {
    return flags.wrong_use("--depth fills one process: it goes without --local and --workers");
  }
  own.model.table = false;
  own.model.steady = true;
  const auto bench = measure(own);
  if (!bench.ok()) return fail("bench", bench.error(), own.json);
  write_out(own.json ? json_text(*bench) : text(*bench, own));
  return kSuccess;
}

}  // namespace tandem::cli
