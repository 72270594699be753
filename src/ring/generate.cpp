#include "ring/generate.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "text/detokenizer.h"

namespace tandem::ring {
namespace {

using Clock = std::chrono::steady_clock;

/// Tokens in one call to the ring while the prompt runs: enough that the pipeline's filling and
/// draining between calls is lost in the noise, few enough that progress is seen.
constexpr size_t kPromptChunk = 2048;
/// How many failures one after the other, without a token between them, are no chance any more.
constexpr uint32_t kMostFailures = 6;
/// And when no further attempt begins.
constexpr auto kMostTrouble = std::chrono::seconds(60);

double milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::string_view name(Finish finish) {
  switch (finish) {
    case Finish::kEnd:
      return "end";
    case Finish::kLength:
      return "length";
    case Finish::kContext:
      return "context";
    case Finish::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

double Answer::prefill_tokens_per_second() const {
  return prefill_seconds > 0 ? (prompt_tokens - reused_tokens) / prefill_seconds : 0;
}

double Answer::decode_tokens_per_second() const {
  return decode_seconds > 0 ? decode_passes / decode_seconds : 0;
}

Status Conversation::check(const GenerateRequest& request) const {
  TANDEM_TRY(decode::check(request.sampler, vocab_));
  if (request.prompt.empty()) return invalid("the prompt is empty: there is nothing to go on from");
  if (request.max_tokens == 0) return invalid("asked for an answer of at most 0 tokens");
  for (const uint32_t token : request.prompt) {
    if (token >= vocab_) {
      return invalid("the prompt has token " + std::to_string(token) + ", the vocabulary ends at " +
                     std::to_string(vocab_ - 1));
    }
  }
  if (request.prompt.size() > context_) {
    return invalid("the prompt has " + std::to_string(request.prompt.size()) +
                   " tokens, the context " + std::to_string(context_));
  }
  return {};
}

Status Conversation::prepare(const std::vector<uint32_t>& prompt) {
  if (broken_ || ring_.wants_replan()) {
    held_.clear();
    broken_ = true;
    TANDEM_TRY(ring_.reset());
    broken_ = false;
  }
  const auto differ = std::mismatch(held_.begin(), held_.end(), prompt.begin(), prompt.end());
  // The last token is run again whatever is held: its output is what the answer begins with.
  const size_t shared =
      std::min(static_cast<size_t>(differ.first - held_.begin()), prompt.size() - 1);
  if (shared < held_.size()) {
    const auto reached = ring_.go_back(static_cast<uint32_t>(shared));
    if (!reached.ok()) {
      held_.resize(shared);
      return recover(reached.error());
    }
    held_.resize(*reached);
  }
  return {};
}

Result<model::HiddenStates> Conversation::pass(std::span<const uint32_t> tokens, uint32_t want) {
  const auto position = static_cast<uint32_t>(held_.size());
  const auto start = Clock::now();
  TANDEM_ASSIGN(model::HiddenStates hidden, ends_.embed(tokens, position));
  ends_ms_ = milliseconds(Clock::now() - start);
  auto result = ring_.forward(std::move(hidden), position, want);
  if (result.ok()) {
    held_.insert(held_.end(), tokens.begin(), tokens.end());
  } else if (result.error().kind == ErrorKind::kCancelled) {
    held_.resize(std::min<size_t>(held_.size(), ring_.length()));
  }
  return result;
}

Result<model::HiddenStates> Conversation::run(std::span<const uint32_t> tokens, uint32_t want) {
  for (;;) {
    auto result = pass(tokens, want);
    if (result.ok()) failures_ = 0;
    if (result.ok() || result.error().kind == ErrorKind::kCancelled) return result;
    TANDEM_TRY(recover(result.error()));
  }
}

size_t Conversation::chunk() const {
  // Between two chunks the pipeline drains, which costs nothing where there is only one stage.
  return ring_.recurrent() && ring_.stage_count() == 1 ? kCheckpointTokens : kPromptChunk;
}

Status Conversation::replay(std::span<const uint32_t> tokens) {
  while (!tokens.empty()) {
    TANDEM_TRY(ring_.keep());
    const auto now = tokens.first(std::min(tokens.size(), chunk()));
    const auto hidden = pass(now, 0);
    if (!hidden.ok()) return hidden.error();
    tokens = tokens.subspan(now.size());
  }
  return {};
}

Status Conversation::recover(const Error& error) {
  broken_ = true;
  const std::vector<uint32_t> tokens = std::exchange(held_, {});
  if (!ring_.survives() || error.kind != ErrorKind::kPeer) return error;
  // Ctrl-C on a terminal reaches workers of the same terminal too.
  if (cancelled()) return Error{ErrorKind::kCancelled, "stopped"};
  Error last = error;
  if (failures_ == 0) failing_since_ = Clock::now();
  for (;;) {
    if (++failures_ > kMostFailures || Clock::now() - failing_since_ > kMostTrouble) {
      return last.in("gave up after " + std::to_string(failures_ - 1) +
                     " failures one after the other, the last of which was");
    }
    TANDEM_TRY(ring_.reset());
    const auto start = Clock::now();
    if (!tokens.empty()) {
      tell({Event::Kind::kReplaying, "", std::to_string(tokens.size()) + " tokens run again"});
    }
    const Status status = replay(tokens);
    if (status.ok() || status.error().kind == ErrorKind::kCancelled) {
      // Cancelled, the ring holds a beginning of it, as it should.
      broken_ = false;
      if (!status.ok()) return status;
      const auto took = static_cast<int64_t>(milliseconds(Clock::now() - start));
      tell({Event::Kind::kGoesOn, "",
            "the answer goes on, after " + std::to_string(took) + " ms of running tokens again"});
      return {};
    }
    if (status.error().kind != ErrorKind::kPeer) return status;
    held_.clear();
    last = status.error();
  }
}

Status Conversation::keep() {
  for (;;) {
    const Status status = ring_.keep();
    if (status.ok()) return status;
    TANDEM_TRY(recover(status.error()));
  }
}

void Conversation::tell(Event event) {
  event.at_ms = milliseconds(Clock::now() - start_);
  events_.push_back(event);
  if (request_ != nullptr && request_->on_event) request_->on_event(event);
}

Result<model::HiddenStates> Conversation::prefill(const GenerateRequest& request) {
  const std::span<const uint32_t> prompt(request.prompt);
  const size_t first = held_.size();
  for (;;) {
    TANDEM_TRY(keep());
    const size_t begin = held_.size();
    const size_t count = std::min(prompt.size() - begin, chunk());
    const bool last = begin + count == prompt.size();
    auto hidden = run(prompt.subspan(begin, count), last ? 1 : 0);
    if (!hidden.ok()) return hidden;
    if (last) TANDEM_TRY(keep());
    if (request.on_prompt) {
      request.on_prompt(static_cast<uint32_t>(held_.size() - first),
                        static_cast<uint32_t>(prompt.size() - first));
    }
    if (last) return hidden;
  }
}

Result<Answer> Conversation::generate(const GenerateRequest& request) {
  TANDEM_TRY(check(request));
  start_ = Clock::now();
  request_ = &request;
  events_.clear();
  failures_ = 0;
  ring_.listen([this](const Event& event) { tell(event); });
  auto result = answer(request);
  ring_.listen({});
  request_ = nullptr;
  if (result.ok()) result->events = std::move(events_);
  return result;
}

Result<Answer> Conversation::answer(const GenerateRequest& request) {
  Answer answer;
  answer.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  const auto start = start_;
  TANDEM_TRY(prepare(request.prompt));
  answer.reused_tokens = static_cast<uint32_t>(held_.size());

  std::optional<text::Detokenizer> detokenizer;
  if (tokenizer_ != nullptr) detokenizer.emplace(*tokenizer_);
  bool go_on = true;
  const auto show = [&](const std::string& piece) {
    if (piece.empty()) return;
    answer.text += piece;
    if (request.on_text && !request.on_text(piece)) go_on = false;
  };

  Sha256 hash;
  std::vector<uint32_t> history = request.prompt;
  std::vector<float> logits;
  std::vector<double> head_ms;
  std::vector<double> pass_ms;
  uint32_t since_checkpoint = 0;
  auto hidden = prefill(request);
  auto pass_start = start;
  auto first_choice = start;
  for (;;) {
    if (!hidden.ok()) {
      if (hidden.error().kind != ErrorKind::kCancelled) return hidden.error();
      answer.finish = Finish::kCancelled;
      break;
    }
    const auto head_start = Clock::now();
    if (Status status = ends_.logits(*hidden, hidden->tokens() - 1, 1, logits); !status.ok()) {
      return status.error();
    }
    decode::SamplerInput input;
    input.logits = logits;
    input.history = history;
    input.prompt_tokens = answer.prompt_tokens;
    input.seed = request.seed;
    input.position = history.size();
    TANDEM_ASSIGN(const uint32_t token, decode::sample(request.sampler, input));
    if (request.hash_logits) hash.update(std::as_bytes(std::span(logits)));
    const auto now = Clock::now();
    if (answer.tokens.empty()) {
      first_choice = now;
      answer.prefill_seconds = milliseconds(now - start) * 1e-3;
    } else {
      head_ms.push_back(ends_ms_ + milliseconds(now - head_start));
      pass_ms.push_back(milliseconds(now - pass_start));
      answer.decode_seconds = milliseconds(now - first_choice) * 1e-3;
      ++answer.decode_passes;
    }
    pass_start = now;
    answer.tokens.push_back(token);
    history.push_back(token);
    if (detokenizer) show(detokenizer->push(static_cast<text::TokenId>(token)));

    if (std::find(request.end_ids.begin(), request.end_ids.end(), token) != request.end_ids.end()) {
      answer.finish = Finish::kEnd;
      break;
    }
    if (!go_on || cancelled()) {
      answer.finish = Finish::kCancelled;
      break;
    }
    if (answer.tokens.size() >= request.max_tokens) {
      answer.finish = Finish::kLength;
      break;
    }
    if (held_.size() >= context_) {
      answer.finish = Finish::kContext;
      break;
    }
    hidden = run({&token, 1}, 1);
    if (hidden.ok() && ++since_checkpoint == kCheckpointTokens) {
      TANDEM_TRY(keep());
      since_checkpoint = 0;
    }
  }
  if (detokenizer) show(detokenizer->flush());
  if (request.hash_logits) answer.logits_sha256 = hash.digest();
  answer.head_ms = mean(head_ms);
  answer.pass_ms = mean(pass_ms);
  return answer;
}

Result<model::StateFile> Conversation::save(const model::StateIdentity& identity) const {
  model::StateFile file;
  file.identity = identity;
  file.tokens = held_;
  TANDEM_ASSIGN(file.state, ring_.write_state());
  return file;
}

Status Conversation::load(const model::StateFile& file, const model::StateIdentity& identity) {
  held_.clear();
  if (!(file.identity == identity)) {
    TANDEM_TRY(ring_.reset());
    return invalid("the state is one of another model, or of other weights");
  }
  TANDEM_TRY(ring_.read_state(file.state));
  const bool known = std::all_of(file.tokens.begin(), file.tokens.end(),
                                 [&](uint32_t token) { return token < vocab_; });
  if (ring_.length() != file.tokens.size() || !known) {
    TANDEM_TRY(ring_.reset());
    return invalid("the state is not one of the tokens that it names");
  }
  held_ = file.tokens;
  broken_ = false;
  return {};
}

}  // namespace tandem::ring
