// tandem run: one prompt, one answer.
#include <nlohmann/json.hpp>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/room_report.h"
#include "cli/session.h"

namespace tandem::cli {
namespace {

constexpr uint64_t kMaxPromptBytes = uint64_t{64} << 20;

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::optional<std::string> prompt;
  std::string system;
  std::string state;  ///< file of what the layers hold; empty: none
  bool raw = false;
  bool json = false;
};

Result<std::vector<uint32_t>> prompt_tokens(const RunFlags& flags, const Text& text) {
  std::vector<text::TokenId> ids;
  if (flags.raw || !text.chat) {
    text::EncodeOptions options;
    options.add_special_tokens = true;
    TANDEM_ASSIGN(ids, text.tokenizer.encode(*flags.prompt, options));
  } else {
    nlohmann::json messages = nlohmann::json::array();
    if (!flags.system.empty()) {
      messages.push_back({{"role", "system"}, {"content", flags.system}});
    }
    messages.push_back({{"role", "user"}, {"content", *flags.prompt}});
    TANDEM_ASSIGN(ids, text.chat->encode(text.tokenizer, messages));
  }
  return std::vector<uint32_t>(ids.begin(), ids.end());
}

std::string json_text(const std::vector<uint32_t>& prompt, const ring::Answer& answer,
                      const std::vector<StageLine>& lines, RoomReport* room) {
  nlohmann::ordered_json object;
  object["text"] = answer.text;
  object["tokens"] = answer.tokens;
  object["prompt_tokens"] = answer.prompt_tokens;
  object["reused_tokens"] = answer.reused_tokens;
  object["prompt_token_ids"] = prompt;
  object["finish"] = std::string(name(answer.finish));
  object["logits_sha256"] = hex(answer.logits_sha256);
  object["stages"] = nlohmann::ordered_json::array();
  for (const StageLine& line : lines) {
    object["stages"].push_back({{"peer", line.peer},
                                {"layers", line.layers},
                                {"bytes", line.bytes},
                                {"ms_per_pass", line.ms_per_pass},
                                {"hop_ms", line.hop_ms}});
  }
  object["ms_per_pass"] = answer.pass_ms;
  object["prefill_tokens_per_second"] = answer.prefill_tokens_per_second();
  object["decode_tokens_per_second"] = answer.decode_tokens_per_second();
  object["events"] = room != nullptr ? room->events() : events_json(answer.events);
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// What is there to tell of an answer that fails.
struct Happened {
  std::shared_ptr<room::Host> room;
  std::vector<ring::Event> events;  ///< without a room

  [[nodiscard]] std::string json() const {
    size_t told = 0;
    const auto list = room != nullptr ? room_events_json(*room, told) : events_json(events);
    return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
};

Result<int> answer_prompt(RunFlags& flags, Happened& happened) {
  if (*flags.prompt == "-") {
    TANDEM_ASSIGN(flags.prompt, read_input(kMaxPromptBytes));
  }
  std::shared_ptr<room::Host>& room = happened.room;
  TANDEM_ASSIGN(Model model, open_model(flags.model, room));
  TANDEM_ASSIGN(const Text text, Text::open(*model.checkpoint));
  ring::GenerateRequest request;
  TANDEM_ASSIGN(request.sampler, flags.sampling.checked());
  TANDEM_ASSIGN(request.prompt, prompt_tokens(flags, text));
  if (request.prompt.empty()) return invalid("the prompt is empty");
  request.seed = flags.sampling.seed;
  request.max_tokens = flags.sampling.max_tokens;
  request.end_ids = text.end_ids(model.config.vocab);
  request.hash_logits = flags.json;
  const uint32_t limit = flags.model.context == 0
                             ? model.config.context
                             : std::min(model.config.context, flags.model.context);
  if (request.prompt.size() > limit) {
    return invalid("the prompt has " + std::to_string(request.prompt.size()) +
                   " tokens, the context " + std::to_string(limit));
  }
  Session::Options options;
  options.context = context_for(flags.model, request.prompt.size(), request.max_tokens);
  options.identify = !flags.state.empty();
  options.room = room;
  TANDEM_ASSIGN(Session session, Session::open(flags.model, std::move(model), options));

  ring::Conversation conversation = session.conversation(&text.tokenizer);
  if (!flags.state.empty()) TANDEM_TRY(session.resume(flags.state, conversation));
  ProgressLine line;
  request.on_text = [&](std::string_view piece) {
    if (session.room() != nullptr && session.room()->due()) {
      session.room()->laps(session.ring().stages());
    }
    return flags.json || write_out(piece);
  };
  request.on_prompt = [&](uint32_t done, uint32_t total) {
    if (done < total) {
      line.show("prompt", done, total);
    } else {
      line.clear();
    }
  };
  request.on_event = room_events(event_notes(flags.model.quiet), session.room());
  auto answered = conversation.generate(request);
  if (!answered.ok()) {
    happened.events = conversation.events();
    return answered.error();
  }
  const ring::Answer answer = std::move(*answered);
  session.tell(answer);
  line.clear();
  if (!flags.state.empty()) {
    TANDEM_ASSIGN(const auto file, conversation.save(session.identity()));
    TANDEM_TRY(file.write(flags.state));
  }
  const auto lines = stage_lines(session, answer.head_ms);
  if (session.room() != nullptr) session.room()->laps(session.ring().stages());
  if (flags.json) {
    if (answer.finish == ring::Finish::kCancelled) {
      happened.events = answer.events;
      return Error{ErrorKind::kCancelled, "stopped"};
    }
    write_out(json_text(request.prompt, answer, lines, session.room()));
  } else {
    write_out("\n");
    if (output_closed()) return kSuccess;
    if (!flags.model.quiet) note(report(answer, lines));
    if (answer.finish == ring::Finish::kContext) {
      note("The answer ends here because the context of " + std::to_string(session.context()) +
           " tokens is full.\n");
    }
    if (answer.finish == ring::Finish::kLength && !flags.model.quiet) {
      note("The answer ends here because of --max-tokens " + std::to_string(request.max_tokens) +
           ".\n");
    }
  }
  if (output_closed()) return kSuccess;
  return answer.finish == ring::Finish::kCancelled ? kInterrupted : kSuccess;
}

}  // namespace

int run_command(Arguments arguments) {
  RunFlags own;
  Flags flags("run", "[FLAGS] PROMPT",
              "Answers one prompt: its text on standard output, the rest on standard error.");
  flags.add_positional("PROMPT", own.prompt, "what to answer; - reads it from standard input",
                       true);
  own.model.add_all(flags);
  own.model.add_room(flags);
  own.model.add_recovery(flags);
  flags.add("--context", "N", own.model.context, 1, 10'000'000,
            "positions to reserve (default: what is needed, at least 4096)");
  own.model.observe.add(flags);
  own.sampling.add(flags);
  flags.add("--system", "TEXT", own.system, "system message");
  flags.add("--raw", own.raw, "continue PROMPT as it is, without the model's chat template");
  flags.add("--state", "FILE", own.state,
            "take from FILE what is computed already; keep the state there");
  flags.add("--json", own.json, "print one JSON object at the end instead of the text");
  flags.add_example("tandem run --room @room.link --seed 7 \"Tell me a story.\"");
  if (const auto code = flags.parse(arguments)) return *code;
  if (own.model.room == "-" && own.prompt == "-") {
    return flags.wrong_use("--room - and PROMPT - can't both read standard input");
  }
  Status status = own.model.check();
  if (status.ok()) {
    if (const auto checked = own.sampling.checked(); !checked.ok()) status = checked.error();
  }
  if (status.ok()) status = own.model.check_state(own.state);
  if (!status.ok()) return flags.wrong_use(status.error().message);
  if (own.json) own.model.table = false;
  Happened happened;
  auto code = answer_prompt(own, happened);
  if (!code.ok()) return fail("run", code.error(), own.json, happened.json());
  return *code;
}

}  // namespace tandem::cli
