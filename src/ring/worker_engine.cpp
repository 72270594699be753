#include "ring/worker_engine.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "ring/plan.h"
#include "ring/worker_load.h"

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 250ms;
constexpr auto kProgressEvery = 250ms;
constexpr auto kDialTimeout = 5s;   // for a dialler that may try several ways
constexpr auto kGreetTimeout = 3s;  // for a direct connection, and then for being let in

}  // namespace

WorkerEngine::WorkerEngine(WorkerOptions options, wire::Listener listener,
                           std::optional<weights::ModelLibrary> library)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      library_(std::move(library)),
      address_(listener_.address().text()),
      cache_(for_stages(options_.memory), options_.keep_idle),
      compute_(std::make_unique<WorkerCompute>(wake_, metrics_, options_.events)),
      ranges_(options_.share),
      thread_([this] { loop(); }) {}

WorkerEngine::~WorkerEngine() {
  stop();
}

void WorkerEngine::stop() {
  stopping_ = true;
  wake_.wake();
  const std::lock_guard lock(stop_mutex_);
  if (thread_.joinable()) thread_.join();
  stopped_ = true;
  stopped_changed_.notify_all();
}

void WorkerEngine::serve() {
  std::unique_lock lock(stop_mutex_);
  stopped_changed_.wait(lock, [&] { return stopped_; });
}

int WorkerEngine::next_timeout() const {
  if (!strangers_.empty() || !sessions_.empty() || !echoes_.empty() ||
      accept_again_ > wire::Clock::now()) {
    return static_cast<int>(kTick / 1ms);
  }
  return 1000;  // idle stages expire to the second
}

void WorkerEngine::loop() {
  std::vector<pollfd> polled;
  std::vector<std::shared_ptr<wire::Connection>> outs;
  while (!stopping_) {
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    const bool accepting = accept_again_ <= wire::Clock::now();
    polled.push_back({accepting ? listener_.fd() : -1, POLLIN, 0});
    const size_t stranger_count = strangers_.size();
    for (const Stranger& stranger : strangers_) {
      polled.push_back({stranger.connection->fd(), POLLIN, 0});
    }
    const size_t echo_count = echoes_.size();
    for (const EchoPeer& echo : echoes_) {
      const bool pending = echo.connection->pending();
      polled.push_back({echo.connection->fd(), static_cast<short>(pending ? POLLOUT : POLLIN), 0});
    }
    const auto sessions = sessions_;
    for (const auto& session : sessions) {
      const bool pending = session->control->pending();
      polled.push_back(
          {session->control->fd(), static_cast<short>(POLLIN | (pending ? POLLOUT : 0)), 0});
    }
    outs.clear();
    for (const auto& session : sessions) {
      const std::lock_guard lock(session->out_mutex);
      if (session->out != nullptr && session->out->pending()) {
        polled.push_back({session->out->fd(), POLLOUT, 0});
        outs.push_back(session->out);
      }
    }
    if (::poll(polled.data(), polled.size(), next_timeout()) < 0) continue;
    if (polled[0].revents != 0) wake_.clear();

    size_t at = 2;
    auto stranger = strangers_.begin();
    for (size_t i = 0; i < stranger_count; ++i, ++at) {
      const bool keep = polled[at].revents == 0 || greet(*stranger);
      stranger = keep ? std::next(stranger) : strangers_.erase(stranger);
    }
    auto echo = echoes_.begin();
    for (size_t i = 0; i < echo_count; ++i, ++at) {
      const bool keep = polled[at].revents == 0 || answer(*echo->connection);
      echo = keep ? std::next(echo) : echoes_.erase(echo);
    }
    for (const auto& session : sessions) {
      const auto events = polled[at++].revents;
      bool keep = true;
      if ((events & POLLOUT) != 0) keep = session->control->flush().ok();
      if (keep && (events & ~POLLOUT) != 0) keep = listen_to(session);
      if (!keep) end(session);
    }
    for (const auto& out : outs) {
      if (polled[at++].revents == 0) continue;
      // A link that breaks is found by the compute thread, at the next frame for it.
      if (!out->flush().ok()) out->shutdown();
      if (!out->pending()) compute_->flushed();
    }
    // After the strangers, whose places in `polled` a new one would shift.
    if (polled[1].revents != 0) accept();
    std::vector<wire::Socket> adopted;
    {
      const std::lock_guard lock(adopted_mutex_);
      adopted.swap(adopted_);
    }
    for (wire::Socket& client : adopted) welcome_stranger(std::move(client));
    tick();
  }
  while (!sessions_.empty()) end(sessions_.back());
  strangers_.clear();
  echoes_.clear();
  ranges_.stop();
  tasks_.join();
  compute_->stop();
}

bool WorkerEngine::listen_to(const std::shared_ptr<Session>& session) {
  wire::Connection& control = *session->control;
  // A bounded number of frames, so that one busy client can't keep the others waiting.
  for (int i = 0; i < 16; ++i) {
    const auto step =
        control.read([&](const wire::Header& header) -> Result<wire::Connection::Place> {
          if (header.type == wire::Type::kTensorChunk) {
            return place_chunk(session->inbox, header.length);
          }
          if (header.type == wire::Type::kLoad && (session->loading || session->ready)) {
            return invalid("a second load");
          }
          if (header.length > 4096 && header.type != wire::Type::kLoad) {
            return invalid("a " + std::string(wire::name(header.type)) + " frame from a host");
          }
          return control.to_payload(header);
        });
    if (step.ok() && *step == wire::Connection::Step::kNothing) return true;
    if (!step.ok() || *step == wire::Connection::Step::kClosed) {
      log(session->peer + ": host left" + (step.ok() ? "" : ": " + step.error().message));
      options_.events.write("host_left", session->peer,
                            {{"reason", step.ok() ? std::string_view("closed")
                                                  : std::string_view(step.error().message)}});
      return false;
    }
    if (control.header().type == wire::Type::kBye) {
      options_.events.write("host_left", session->peer, {{"reason", "bye"}});
      return false;
    }
    if (const Status status = dispatch(session, control.header()); !status.ok()) {
      log(session->peer + ": " + status.error().message);
      metrics_.refusals.add();
      options_.events.write("refused", session->peer, {{"reason", status.error().message}});
      session->refuse(status.error());
      return false;
    }
  }
  return true;
}

Status WorkerEngine::dispatch(const std::shared_ptr<Session>& session, const wire::Header& header) {
  wire::Connection& control = *session->control;
  switch (header.type) {
    case wire::Type::kPing:
      session->tell(wire::Type::kPong, pong(*session));
      return {};
    case wire::Type::kTensorChunk:
      chunk_arrived(session->inbox, header.length);
      return {};
    case wire::Type::kFence:
      session->fence = std::max(session->fence.load(), header.lap);
      return {};
    case wire::Type::kRefusal: {
      TANDEM_ASSIGN(const wire::Refusal refusal, wire::Refusal::decode(control.payload()));
      fail_inbox(session->inbox, {refusal.kind, "the host refused: " + refusal.reason});
      return {};
    }
    case wire::Type::kLoad: {
      TANDEM_ASSIGN(session->request, wire::Load::decode(control.payload()));
      control.to_payload({});  // the message's memory goes back
      if (const auto pass = compute_->pass(); pass.busy && pass.running_ms > pass.allowed_ms) {
        return Error{ErrorKind::kPeer, "this worker hangs: a pass has run for " +
                                           std::to_string(pass.running_ms / 1000) + " s"};
      }
      session->loading = true;
      log(session->peer + ": loading layers " +
          text({session->request.first_layer, session->request.last_layer}));
      tasks_.run([this, session] { load(session); });
      return {};
    }
    case wire::Type::kActivate: {
      if (!session->ready) return invalid("activate before a stage is loaded");
      if (session->measuring) return invalid("activate while passes are measured");
      TANDEM_ASSIGN(const wire::Activate activate, wire::Activate::decode(control.payload()));
      session->in_key = activate.in;
      session->out_key = activate.out;
      session->activated = true;
      session->activation = activate.number;
      compute_->activate(session);
      session->tell(wire::Type::kActivated);
      return {};
    }
    case wire::Type::kMeasure: {
      if (!session->ready) return invalid("measure before a stage is loaded");
      if (session->activated) return invalid("measure after activate");
      if (session->measuring) return invalid("a second measure while one is under way");
      TANDEM_ASSIGN(wire::Measure request, wire::Measure::decode(control.payload()));
      session->measuring = true;
      compute_->measure(session, std::move(request));
      return {};
    }
    case wire::Type::kTestLink: {
      if (!session->activated) return invalid("test-link before activate");
      TANDEM_ASSIGN(const wire::TestLink request, wire::TestLink::decode(control.payload()));
      test_link(session, request);
      return {};
    }
    case wire::Type::kDial: {
      if (!session->activated) return invalid("dial before activate");
      TANDEM_ASSIGN(const wire::Dial request, wire::Dial::decode(control.payload()));
      dial(session, request);
      return {};
    }
    default:
      return invalid("unexpected " + std::string(wire::name(header.type)) + " frame from a host");
  }
}

Result<std::unique_ptr<wire::Connection>> WorkerEngine::call(const std::string& where,
                                                             wire::Role role, const wire::Key& key,
                                                             const Digest& pin) const {
  if ((options_.tls == nullptr) != (pin == Digest{})) {
    return invalid(
        "a host without TLS can't have a worker with TLS connect to others, or the reverse");
  }
  TANDEM_ASSIGN(wire::Socket socket, options_.dialler ? options_.dialler(where, kDialTimeout)
                                                      : wire::dial_tcp(where, kGreetTimeout));
  const auto deadline = wire::Clock::now() + kGreetTimeout;
  auto link = std::make_unique<wire::Connection>(
      std::move(socket), options_.tls == nullptr ? nullptr : options_.tls->connecting(pin));
  TANDEM_TRY(link->secure_until(deadline));
  wire::Hello hello;
  hello.contract = contract_version();
  hello.role = role;
  hello.key = key;
  hello.software = software_version();
  TANDEM_TRY(link->send_until(deadline, {.type = wire::Type::kHello}, hello.encode()));
  TANDEM_ASSIGN(const wire::Header answer, link->receive_until(deadline, 4096));
  if (answer.type == wire::Type::kRefusal) {
    TANDEM_ASSIGN(const wire::Refusal refusal, wire::Refusal::decode(link->payload()));
    return Error{ErrorKind::kPeer, refusal.reason};
  }
  if (answer.type != wire::Type::kWelcome) return invalid("no welcome from the next stage");
  return link;
}

void WorkerEngine::dial(const std::shared_ptr<Session>& session, const wire::Dial& request) {
  tasks_.run([this, session, request, activation = session->activation.load()] {
    auto link = call(request.address, wire::Role::kLinkIn, request.key, request.pin);
    if (!link.ok()) return session->refuse(link.error());
    compute_->link_out(session, activation, std::move(*link), false);
    session->tell(wire::Type::kDialed);
  });
}

void WorkerEngine::test_link(const std::shared_ptr<Session>& session,
                             const wire::TestLink& request) {
  tasks_.run([this, session, request] {
    const auto link = call(request.address, wire::Role::kEcho, request.key, request.pin);
    if (!link.ok()) return session->refuse(link.error());
    const auto tested = measure_link(**link);
    if (!tested.ok()) return session->refuse(tested.error());
    session->tell(wire::Type::kLinkTested, tested->encode());
  });
}

void WorkerEngine::end(const std::shared_ptr<Session>& session) {
  session->gone = true;
  count_bytes(*session);
  fail_inbox(session->inbox, {ErrorKind::kCancelled, "the host left"});
  session->control->shutdown();
  compute_->remove(session);
  std::erase(sessions_, session);
  count_sessions();
}

void WorkerEngine::count_sessions() {
  session_count_ = sessions_.size();
  std::vector<Digest> hosts;
  for (const auto& session : sessions_) {
    const wire::TlsChannel* channel = session->control->channel();
    if (channel != nullptr) hosts.push_back(channel->peer());
  }
  const std::lock_guard lock(hosts_mutex_);
  hosts_ = std::move(hosts);
}

std::vector<Digest> WorkerEngine::hosts() const {
  const std::lock_guard lock(hosts_mutex_);
  return hosts_;
}

void WorkerEngine::tick() {
  const auto now = wire::Clock::now();
  std::erase_if(strangers_, [&](const Stranger& stranger) { return stranger.deadline < now; });
  std::erase_if(echoes_, [&](const EchoPeer& echo) { return echo.deadline < now; });
  tasks_.reap();
  ranges_.reap();
  cache_.expire();
  if (now - last_progress_ < kProgressEvery) return;
  last_progress_ = now;
  for (const auto& session : sessions_) {
    count_bytes(*session);
    if (!session->loading) continue;
    wire::Progress progress;
    progress.phase = static_cast<wire::LoadPhase>(session->phase.load());
    progress.done = session->done;
    progress.total = session->total;
    session->tell(wire::Type::kProgress, progress.encode());
  }
}

}  // namespace tandem::ring
