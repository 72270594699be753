#include "ring/worker_compute.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "ring/expectation.h"
#include "ring/states.h"

namespace tandem::ring {
namespace {

constexpr size_t kMaxMarks = 64;
constexpr uint32_t kMeasuredPassMs = 60000;

int64_t now_ns() {
  return wire::Clock::now().time_since_epoch().count();
}

}  // namespace

/// One session on the compute thread.
struct WorkerCompute::Lane {
  struct State {
    std::unique_ptr<model::Sequence> sequence;
    std::map<uint32_t, uint32_t> marks;  ///< mark -> length
  };
  std::shared_ptr<Session> session;
  std::shared_ptr<wire::Connection> in;
  std::shared_ptr<wire::Connection> out;
  bool to_host = false;
  uint64_t activation = 0;
  std::vector<State> states;
  model::HiddenStates hidden;
  Expectation expectation;

  model::Stage& stage() const { return *session->lease.stage->stage; }
};

struct WorkerCompute::Command {
  enum class Kind { kActivate, kLinkIn, kLinkOut, kMeasure, kRemove } kind = Kind::kActivate;
  std::shared_ptr<Session> session;
  uint64_t activation = 0;
  std::shared_ptr<wire::Connection> link;
  bool to_host = false;
  wire::Measure measure;
};

WorkerCompute::WorkerCompute(const wire::Wake& flush, WorkerMetrics& metrics,
                             const observe::EventLog& events)
    : flush_(flush), metrics_(metrics), events_(events), thread_([this] { loop(); }) {}

WorkerCompute::~WorkerCompute() {
  stop();
}

void WorkerCompute::stop() {
  stopping_ = true;
  wake_.wake();
  if (thread_.joinable()) thread_.join();
}

void WorkerCompute::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.wake();
}

void WorkerCompute::activate(std::shared_ptr<Session> session) {
  const uint64_t activation = session->activation;
  post({Command::Kind::kActivate, std::move(session), activation, nullptr, false, {}});
}

void WorkerCompute::link_in(std::shared_ptr<Session> session, uint64_t activation,
                            std::shared_ptr<wire::Connection> link) {
  post({Command::Kind::kLinkIn, std::move(session), activation, std::move(link), false, {}});
}

void WorkerCompute::link_out(std::shared_ptr<Session> session, uint64_t activation,
                             std::shared_ptr<wire::Connection> link, bool to_host) {
  post({Command::Kind::kLinkOut, std::move(session), activation, std::move(link), to_host, {}});
}

void WorkerCompute::measure(std::shared_ptr<Session> session, wire::Measure request) {
  post({Command::Kind::kMeasure, std::move(session), 0, nullptr, false, std::move(request)});
}

void WorkerCompute::remove(std::shared_ptr<Session> session) {
  post({Command::Kind::kRemove, std::move(session), 0, nullptr, false, {}});
}

WorkerCompute::Pass WorkerCompute::pass() const {
  Pass pass;
  const int64_t started = pass_started_.load(std::memory_order_acquire);
  if (started == 0) return pass;
  pass.busy = true;
  pass.running_ms = static_cast<uint32_t>((now_ns() - started) / 1000000);
  pass.allowed_ms = pass_allowed_.load(std::memory_order_relaxed);
  return pass;
}

WorkerCompute::Lane* WorkerCompute::find(const Session& session) {
  for (const auto& lane : lanes_) {
    if (lane->session.get() == &session) return lane.get();
  }
  return nullptr;
}

void WorkerCompute::obey() {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    Session& session = *command.session;
    Lane* lane = find(session);
    switch (command.kind) {
      case Command::Kind::kActivate: {
        std::erase_if(measurements_,
                      [&](const auto& one) { return one.session == command.session; });
        if (lane == nullptr) {
          lanes_.push_back(std::make_unique<Lane>());
          lane = lanes_.back().get();
          lane->session = command.session;
          lane->states.resize(session.request.sequences);
        }
        lane->activation = command.activation;
        lane->in.reset();
        lane->out.reset();
        for (auto& state : lane->states) {
          state.sequence = lane->stage().new_sequence(session.request.context);
          state.marks.clear();
        }
        session.received = session.sent = 0;
        session.bytes_in = session.bytes_out = 0;
        break;
      }
      case Command::Kind::kLinkIn:
        if (lane != nullptr && command.activation == lane->activation) {
          lane->in = std::move(command.link);
          lane->in->acknowledge();
        }
        break;
      case Command::Kind::kLinkOut:
        if (lane != nullptr && command.activation == lane->activation) {
          lane->out = std::move(command.link);
          lane->to_host = command.to_host;
          const std::lock_guard lock(session.out_mutex);
          session.out = lane->out;
        }
        break;
      case Command::Kind::kMeasure: {
        auto at = std::find_if(measurements_.begin(), measurements_.end(),
                               [&](const auto& one) { return one.session == command.session; });
        if (at == measurements_.end()) {
          measurements_.push_back(
              {command.session,
               std::make_unique<StageMeter>(*session.lease.stage->stage, session.config.hidden_size,
                                            session.request.context),
               false});
          at = std::prev(measurements_.end());
        }
        const Status status = at->meter->begin(std::move(command.measure));
        at->under_way = status.ok();
        if (!status.ok()) {
          session.measuring = false;
          session.refuse(status.error());
        }
        break;
      }
      case Command::Kind::kRemove:
        std::erase_if(measurements_,
                      [&](const auto& entry) { return entry.session == command.session; });
        std::erase_if(lanes_, [&](const auto& entry) { return entry.get() == lane; });
        break;
    }
  }
}

void WorkerCompute::loop() {
  std::vector<pollfd> polled;
  std::vector<Lane*> polled_lanes;
  while (!stopping_) {
    obey();
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    polled_lanes.assign(1, nullptr);
    for (const auto& lane : lanes_) {
      // Frames wait in their socket until there is a way out. A link out that is full stops its
      // lane only: the next stage is slower, and that pushes back.
      if (lane->in == nullptr || lane->out == nullptr || lane->out->pending()) continue;
      polled.push_back({lane->in->fd(), POLLIN, 0});
      polled_lanes.push_back(lane.get());
    }
    // With several sessions another one's frame might wait meanwhile.
    std::optional<Expectation::Window> window;
    if (polled.size() == 2) window = polled_lanes[1]->expectation.window(wire::Clock::now());
    const bool measuring = std::any_of(measurements_.begin(), measurements_.end(),
                                       [](const Measurement& one) { return one.under_way; });
    const int ready = window && !measuring
                          ? poll_until(polled.data(), polled.size(), window->from)
                          : ::poll(polled.data(), polled.size(), measuring ? 0 : -1);
    if (ready < 0) continue;
    if (ready == 0 && !measuring) {
      watch(*polled_lanes[1], window->until);
      continue;
    }
    if (polled[0].revents != 0) wake_.clear();
    // One frame of each session in turn, so that none waits for another's whole prompt.
    for (size_t i = 1; i < polled.size() && !stopping_; ++i) {
      if (polled[i].revents != 0 && !polled_lanes[i]->session->gone) receive(*polled_lanes[i]);
    }
    if (measuring) measure_some();
  }
  lanes_.clear();
  measurements_.clear();
}

void WorkerCompute::measure_some() {
  // One pass of each in turn.
  for (Measurement& one : measurements_) {
    if (!one.under_way) continue;
    Session& session = *one.session;
    pass_allowed_.store(kMeasuredPassMs, std::memory_order_relaxed);
    pass_started_.store(now_ns(), std::memory_order_release);
    const auto done = one.meter->step();
    pass_started_.store(0, std::memory_order_release);
    if (done.ok() && !*done) continue;
    one.under_way = false;
    // Before the answer: whoever has it may ask for the next one at once.
    session.measuring = false;
    if (done.ok()) {
      session.tell(wire::Type::kMeasured, one.meter->result().encode());
    } else {
      session.refuse(done.error());
    }
  }
}

void WorkerCompute::watch(Lane& lane, wire::Clock::time_point until) {
  while (!stopping_ && !lane.session->gone) {
    if (lane.in->readable() && receive(lane)) return;
    if (wire::Clock::now() >= until) return lane.expectation.missed();
    ::sched_yield();
  }
}

void WorkerCompute::trouble(Lane& lane, wire::Blame blame, bool link_lost, const Error& error) {
  metrics_.troubles.add();
  events_.write("trouble", lane.session->peer,
                {{"link_lost", int64_t{link_lost ? 1 : 0}}, {"reason", error.message}});
  lane.session->tell(
      wire::Type::kTrouble,
      wire::Trouble{lane.activation, blame, error.kind, link_lost, error.message}.encode());
  // Whatever follows on these links belongs to a lap that is lost.
  lane.in.reset();
  lane.out.reset();
  const std::lock_guard lock(lane.session->out_mutex);
  lane.session->out.reset();
}

bool WorkerCompute::receive(Lane& lane) {
  const uint32_t width = lane.session->config.hidden_size;
  const auto step =
      lane.in->read([&](const wire::Header& header) -> Result<wire::Connection::Place> {
        if (header.type != wire::Type::kStates) {
          return invalid("a " + std::string(wire::name(header.type)) + " frame on a link");
        }
        return place_states(lane.hidden, header.tokens, width, header.length);
      });
  if (!step.ok()) {
    const bool lost = step.error().kind == ErrorKind::kPeer;
    trouble(lane, wire::Blame::kUpstream, lost, step.error());
  } else if (*step == wire::Connection::Step::kClosed) {
    trouble(lane, wire::Blame::kUpstream, true, {ErrorKind::kPeer, "the link in closed"});
  } else if (*step == wire::Connection::Step::kFrame) {
    lane.session->received.fetch_add(1);
    lane.session->bytes_in = lane.in->bytes_in();
    lane.expectation.came(wire::Clock::now());
    handle(lane, lane.in->header());
  } else {
    // A part of a frame on a slow link is movement too, for whoever watches the counters.
    lane.session->bytes_in = lane.in->bytes_in();
    return false;
  }
  return true;
}

Status WorkerCompute::control(Lane& lane, const wire::Header& header) {
  Lane::State& state = lane.states[header.sequence];
  auto roll_back = [&](uint32_t length) -> Status {
    if (length > state.sequence->length()) {
      return invalid("asked to roll back to " + std::to_string(length) + " positions, the stage " +
                     "holds " + std::to_string(state.sequence->length()));
    }
    TANDEM_TRY(state.sequence->rollback(length));
    // A mark past the end would come to mean other tokens.
    std::erase_if(state.marks, [&](const auto& mark) { return mark.second > length; });
    return {};
  };
  switch (header.control) {
    case wire::Control::kNone:
      return {};
    case wire::Control::kReset:
      return roll_back(0);
    case wire::Control::kRollback:
      return roll_back(header.argument);
    case wire::Control::kSave:
      if (state.marks.size() >= kMaxMarks && !state.marks.contains(header.argument)) {
        return invalid("asked for more than " + std::to_string(kMaxMarks) + " checkpoints");
      }
      TANDEM_TRY(state.sequence->save(header.argument));
      state.marks[header.argument] = state.sequence->length();
      return {};
    case wire::Control::kRestore: {
      const auto mark = state.marks.find(header.argument);
      if (mark == state.marks.end()) {
        return invalid("no checkpoint " + std::to_string(header.argument));
      }
      const uint32_t length = mark->second;
      TANDEM_TRY(state.sequence->restore(header.argument, length));
      std::erase_if(state.marks, [&](const auto& entry) { return entry.second > length; });
      return {};
    }
    case wire::Control::kDrop:
      state.sequence->drop(header.argument);
      state.marks.erase(header.argument);
      return {};
  }
  return {};
}

void WorkerCompute::handle(Lane& lane, const wire::Header& header) {
  Session& session = *lane.session;
  if (header.lap <= session.fence) {
    session.sent.fetch_add(1);
    return;
  }
  if (header.sequence >= lane.states.size()) {
    return trouble(lane, wire::Blame::kRequest, false,
                   invalid("no sequence " + std::to_string(header.sequence)));
  }
  if (const Status status = check_states(lane.hidden); !status.ok()) {
    return trouble(lane, wire::Blame::kUpstream, false, status.error());
  }
  if (const Status status = control(lane, header); !status.ok()) {
    return trouble(lane, wire::Blame::kRequest, false, status.error());
  }
  wire::Header next = header;
  if (header.tokens > 0) {
    model::Sequence& sequence = *lane.states[header.sequence].sequence;
    const uint32_t length = sequence.length();
    if (header.position != length || header.tokens > session.request.context - length) {
      return trouble(
          lane, wire::Blame::kRequest, false,
          invalid("asked to run " + std::to_string(header.tokens) + " tokens from position " +
                  std::to_string(header.position) + ", the stage holds " + std::to_string(length) +
                  " of " + std::to_string(session.request.context) + " positions"));
    }
    PassTimes& times = session.lease.stage->times;
    pass_allowed_.store(times.allowed_ms(header.tokens), std::memory_order_relaxed);
    const int64_t start = now_ns();
    pass_started_.store(start, std::memory_order_release);
    Status status;
    try {
      status = lane.stage().run(sequence, header.position, lane.hidden);
    } catch (const std::bad_alloc&) {
      status = Error{ErrorKind::kMemory, "the system has too little memory for the pass"};
    }
    const auto took = static_cast<uint32_t>((now_ns() - start) / 1000);
    pass_started_.store(0, std::memory_order_release);
    passes_.fetch_add(1, std::memory_order_relaxed);
    if (!status.ok()) return trouble(lane, wire::Blame::kSelf, false, status.error());
    if (lane.hidden.tokens() != header.tokens || lane.hidden.width != session.config.hidden_size) {
      return trouble(lane, wire::Blame::kSelf, false,
                     invalid("the stage gave " + std::to_string(lane.hidden.tokens()) +
                             " rows for " + std::to_string(header.tokens) + " tokens"));
    }
    times.add(header.tokens, took);
    metrics_.passes.add();
    metrics_.tokens.add(header.tokens);
    metrics_.pass_ms.add(took * 1e-3);
    session.stage_passes.fetch_add(1);
    session.stage_us.fetch_add(took);
    if (header.tokens == 1) {
      session.single_passes.fetch_add(1);
      session.single_us.fetch_add(took);
    }
    next.compute_us += took;
    if (header.lap <= session.fence) {
      session.sent.fetch_add(1);
      return;
    }
  }
  if (lane.out == nullptr) {
    return trouble(lane, wire::Blame::kDownstream, true,
                   {ErrorKind::kPeer, "there is no link out"});
  }
  const uint32_t tokens = lane.hidden.tokens();
  const uint32_t rows = lane.to_host ? std::min(header.want, tokens) : tokens;
  // Counted before: whoever gets the frame may ask at once.
  session.bytes_out =
      lane.out->bytes_out() + wire::kHeaderBytes + states_bytes(rows, session.config.hidden_size);
  session.sent.fetch_add(1);
  const Status status = send_states(*lane.out, next, lane.hidden, tokens - rows, rows);
  if (!status.ok()) return trouble(lane, wire::Blame::kDownstream, true, status.error());
  if (lane.out->pending()) flush_.wake();
  lane.expectation.sent(tokens, wire::Clock::now());
  // After the frame is on its way, so that they cost no latency.
  metrics_.bytes_in.add(wire::kHeaderBytes + header.length);
  metrics_.bytes_out.add(wire::kHeaderBytes + states_bytes(rows, session.config.hidden_size));
  if (lane.in != nullptr) lane.in->acknowledge();
}

}  // namespace tandem::ring
