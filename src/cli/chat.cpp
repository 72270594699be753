// tandem chat: a conversation in the terminal, or scripted through a pipe.
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/room_report.h"
#include "cli/session.h"

namespace tandem::cli {
namespace {

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
  std::string state;  ///< file of the conversation's state; empty: none
  bool json = false;
};

constexpr size_t kMaxLine = size_t{1} << 20;

/// Lines of standard input. Reads by itself, so that Ctrl-C ends the wait for a line.
class LineReader {
 public:
  /// The next line without its end; nothing at the end of the input or after Ctrl-C.
  std::optional<std::string> next() {
    for (;;) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      if (ended_ || buffer_.size() > kMaxLine) {
        if (buffer_.empty()) return std::nullopt;
        return std::exchange(buffer_, {});
      }
      char piece[4096];
      const ssize_t count = ::read(STDIN_FILENO, piece, sizeof piece);
      if (count < 0 && errno == EINTR) {
        if (cancel_flag()) return std::nullopt;
        continue;
      }
      if (count <= 0) {
        ended_ = true;
      } else {
        buffer_.append(piece, static_cast<size_t>(count));
      }
    }
  }

 private:
  std::string buffer_;
  bool ended_ = false;
};

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Chat {
 public:
  Chat(const ChatFlags& flags, const Text& text, Session& session)
      : flags_(flags),
        text_(text),
        session_(session),
        conversation_(session.conversation(&text.tokenizer)) {
    forget();
  }

  /// Goes on with the conversation that an earlier process left, if it left one.
  Status resume() {
    TANDEM_ASSIGN(const auto note, session_.resume(flags_.state, conversation_));
    if (note.empty()) return {};
    auto messages = nlohmann::json::parse(note, nullptr, false);
    if (!messages.is_array()) {
      return invalid(flags_.state + ": the state of a single answer, not of a conversation");
    }
    messages_ = std::move(messages);
    return {};
  }

  /// Returns the exit code.
  int loop(const decode::SamplerParameters& parameters) {
    const bool typed = ::isatty(STDIN_FILENO) == 1 && on_terminal();
    if (typed) note("\nType a message and Enter; /new starts over, /quit or Ctrl-D ends.\n");
    LineReader lines;
    for (;;) {
      if (typed) note(styled(Style::kBold, "\n> "));
      const auto line = lines.next();
      if (!line) {
        if (typed) note("\n");
        return cancel_flag() && !output_closed() ? kInterrupted : kSuccess;
      }
      if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
      if (*line == "/quit") return kSuccess;
      if (*line == "/new") {
        forget();
        continue;
      }
      if (session_.room() != nullptr && answers_lobby(*line)) continue;
      const Status status = turn(*line, parameters);
      if (output_closed()) return kSuccess;
      if (!status.ok()) {
        // The conversation goes on: the next turn puts a broken ring together again.
        const auto events = session_.room() != nullptr ? session_.room()->events()
                                                       : events_json(conversation_.events());
        const int code = fail("chat", status.error(), flags_.json, dump(events));
        if (!typed) return code;
      }
      if (cancel_flag()) {
        if (!typed) return kInterrupted;
        clear_cancel();
      }
    }
  }

 private:
  void forget() {
    messages_ = nlohmann::json::array();
    if (!flags_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", flags_.system}});
    }
  }

  /// "/allow DEVICE" and "/deny DEVICE": somebody asks to join the room.
  bool answers_lobby(const std::string& line) {
    const bool let_in = line.starts_with("/allow ");
    if (!let_in && !line.starts_with("/deny ")) return false;
    const std::string device = line.substr(line.find(' ') + 1);
    const Status answered = session_.room()->answer_lobby(device, let_in);
    if (!answered.ok()) note(answered.error().message + "\n");
    return true;
  }

  Status turn(const std::string& line, const decode::SamplerParameters& parameters) {
    nlohmann::json messages = messages_;
    messages.push_back({{"role", "user"}, {"content", line}});
    TANDEM_ASSIGN(const auto ids, text_.chat->encode(text_.tokenizer, messages));
    ring::GenerateRequest request;
    request.prompt.assign(ids.begin(), ids.end());
    if (request.prompt.size() >= session_.context()) {
      return invalid("the conversation has " + std::to_string(request.prompt.size()) +
                     " tokens and fills the context of " + std::to_string(session_.context()) +
                     "; /new starts over");
    }
    request.sampler = parameters;
    request.seed = flags_.sampling.seed;
    request.max_tokens = flags_.sampling.max_tokens;
    request.end_ids = text_.end_ids(session_.config().vocab);
    request.hash_logits = flags_.json;
    request.on_text = [&](std::string_view piece) {
      if (session_.room() != nullptr && session_.room()->due()) {
        session_.room()->laps(session_.ring().stages());
      }
      return flags_.json || write_out(piece);
    };
    request.on_event = room_events(event_notes(flags_.model.quiet), session_.room());
    TANDEM_ASSIGN(const ring::Answer answer, conversation_.generate(request));
    session_.tell(answer);
    messages_ = std::move(messages);
    messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
    if (session_.room() != nullptr) session_.room()->laps(session_.ring().stages(), "ready");
    if (!flags_.state.empty()) TANDEM_TRY(keep());
    if (flags_.json) {
      nlohmann::ordered_json object;
      object["text"] = answer.text;
      object["tokens"] = answer.tokens;
      object["prompt_tokens"] = answer.prompt_tokens;
      object["reused_tokens"] = answer.reused_tokens;
      object["finish"] = std::string(name(answer.finish));
      object["logits_sha256"] = hex(answer.logits_sha256);
      object["events"] =
          session_.room() != nullptr ? session_.room()->events() : events_json(answer.events);
      write_out(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
      return {};
    }
    write_out("\n");
    if (answer.finish == ring::Finish::kContext) {
      note("The answer ends here because the context of " + std::to_string(session_.context()) +
           " tokens is full; /new starts over.\n");
    }
    if (!flags_.model.quiet && !flags_.json) {
      note(styled(Style::kDim, "prompt " + std::to_string(answer.prompt_tokens) + " tokens, " +
                                   std::to_string(answer.reused_tokens) + " reused; answer " +
                                   std::to_string(answer.tokens.size()) + " tokens, " +
                                   number(answer.decode_tokens_per_second(), 1) + " tokens/s") +
           "\n");
    }
    return {};
  }

  Status keep() {
    TANDEM_ASSIGN(auto file, conversation_.save(session_.identity()));
    file.note = messages_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return file.write(flags_.state);
  }

  const ChatFlags& flags_;
  const Text& text_;
  Session& session_;
  ring::Conversation conversation_;
  nlohmann::json messages_;
};

Result<int> talk(ChatFlags& flags, std::shared_ptr<room::Host>& room) {
  TANDEM_ASSIGN(const auto parameters, flags.sampling.checked());
  TANDEM_ASSIGN(Model model, open_model(flags.model, room));
  TANDEM_ASSIGN(const Text text, Text::open(*model.checkpoint));
  if (!text.chat) {
    return unsupported(model.checkpoint->folder().string() +
                       ": the model has no chat template; continue texts with 'tandem run'");
  }
  Session::Options options;
  options.context = context_for(flags.model, 0, flags.sampling.max_tokens);
  options.identify = !flags.state.empty();
  options.room = room;
  TANDEM_ASSIGN(Session session, Session::open(flags.model, std::move(model), options));
  Chat chat(flags, text, session);
  if (!flags.state.empty()) TANDEM_TRY(chat.resume());
  return chat.loop(parameters);
}

}  // namespace

int chat_command(Arguments arguments) {
  ChatFlags own;
  Flags flags("chat", "[FLAGS]", "Talks with a model: each line of standard input is a message.");
  own.model.add_all(flags);
  own.model.add_room(flags);
  own.model.add_recovery(flags);
  flags.add("--context", "N", own.model.context, 1, 10'000'000,
            "positions to reserve (default: 4096, at most the model's)");
  own.model.observe.add(flags);
  own.sampling.add(flags);
  flags.add("--system", "TEXT", own.system, "system message");
  flags.add("--state", "FILE", own.state,
            "go on with the conversation in FILE, if there is one; keep it there");
  flags.add("--json", own.json, "print one JSON object an answer instead of the text");
  flags.add_example("tandem chat --local 2 --temperature 0.7 --top-p 0.95");
  flags.add_example("tandem chat --room @room.link");
  flags.add_example("printf 'Hello!\\nWho are you?\\n' | tandem chat --quiet");
  if (const auto code = flags.parse(arguments)) return *code;
  if (own.model.room == "-") {
    return flags.wrong_use("standard input has the messages; take the link from @FILE");
  }
  Status status = own.model.check();
  if (status.ok()) {
    if (const auto checked = own.sampling.checked(); !checked.ok()) status = checked.error();
  }
  if (status.ok()) status = own.model.check_state(own.state);
  if (!status.ok()) return flags.wrong_use(status.error().message);
  if (own.json) own.model.table = false;
  std::shared_ptr<room::Host> room;
  const auto code = talk(own, room);
  if (!code.ok()) {
    size_t told = 0;
    const auto events =
        room != nullptr ? room_events_json(*room, told) : nlohmann::ordered_json::array();
    return fail("chat", code.error(), own.json, dump(events));
  }
  return *code;
}

}  // namespace tandem::cli
