#include "ring/worker_engine.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "ring/plan.h"
#include "ring/worker_load.h"

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMaxStrangers = 256;
constexpr size_t kMaxSessions = 32;
constexpr auto kTick = 250ms;
constexpr auto kRefusedLinger = 1s;
constexpr auto kProgressEvery = 250ms;
constexpr auto kDialTimeout = 3s;
constexpr size_t kMaxEchoes = 16;
constexpr auto kEchoTime = 10s;  // twice what measuring a link may take

/// In a time that does not tell how many bytes were right.
bool equal(const wire::Key& a, const wire::Key& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

WorkerEngine::WorkerEngine(WorkerOptions options, wire::Listener listener,
                           std::optional<weights::ModelLibrary> library)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      library_(std::move(library)),
      address_(listener_.address().text()),
      cache_(options_.memory, options_.keep_idle),
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

void WorkerEngine::accept() {
  for (int i = 0; i < 64; ++i) {
    auto client = listener_.accept();
    if (!client.ok()) {
      // Out of descriptors, most likely: the strangers' go first.
      if (!strangers_.empty()) strangers_.pop_front();
      accept_again_ = wire::Clock::now() + 100ms;
      return;
    }
    if (!client->has_value()) return;
    welcome_stranger(std::move(**client));
  }
}

void WorkerEngine::welcome_stranger(wire::Socket client) {
  metrics_.connections.add();
  if (strangers_.size() >= kMaxStrangers) strangers_.pop_front();
  strangers_.push_back(
      {std::make_unique<wire::Connection>(
           std::move(client), options_.tls == nullptr ? nullptr : options_.tls->accepting()),
       wire::Clock::now() + options_.hello_deadline, false});
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the list owns the connection

bool WorkerEngine::refuse(Stranger& stranger, ErrorKind kind, const std::string& reason) {
  metrics_.refusals.add();
  options_.events.write("refused", stranger.connection->peer(), {{"reason", reason}});
  const auto payload = wire::Refusal{kind, reason}.encode();
  if (!stranger.connection->send({.type = wire::Type::kRefusal}, payload).ok()) return false;
  ::shutdown(stranger.connection->fd(), SHUT_WR);
  stranger.refused = true;
  stranger.deadline = wire::Clock::now() + kRefusedLinger;
  return true;
}

bool WorkerEngine::greet(Stranger& stranger) {
  if (stranger.refused) {
    std::array<std::byte, 4096> ignored;
    return ::recv(stranger.connection->fd(), ignored.data(), ignored.size(), MSG_DONTWAIT) > 0;
  }
  auto& connection = stranger.connection;
  const auto step =
      connection->read([&](const wire::Header& header) -> Result<wire::Connection::Place> {
        if (header.type != wire::Type::kHello) return invalid("no hello");
        return connection->to_payload(header);
      });
  if (!step.ok() && connection->drop_channel_for_plain_peer()) {
    return refuse(stranger, ErrorKind::kPeer,
                  "this worker takes only devices that prove the room's key (--key)");
  }
  if (!step.ok() && connection->channel() != nullptr) {
    metrics_.refusals.add();
    options_.events.write("refused", connection->peer(), {{"reason", step.error().message}});
    log(connection->peer() + ": " + step.error().message);
  }
  if (!step.ok() || *step == wire::Connection::Step::kClosed) return false;
  if (*step == wire::Connection::Step::kNothing) return true;
  const auto hello = wire::Hello::decode(connection->payload());
  if (!hello.ok()) return refuse(stranger, ErrorKind::kInvalid, hello.error().message);
  if (hello->protocol != wire::kProtocolVersion) {
    return refuse(stranger, ErrorKind::kUnsupported,
                  "protocol version " + std::to_string(hello->protocol) +
                      " does not fit this worker's version " +
                      std::to_string(wire::kProtocolVersion));
  }
  if (hello->contract != contract_version()) {
    return refuse(stranger, ErrorKind::kUnsupported,
                  "arithmetic contract version " + std::to_string(hello->contract) +
                      " does not fit this worker's version " + std::to_string(contract_version()) +
                      ": the answers would differ");
  }
  if (hello->role == wire::Role::kSource) {
    if (const Status may = ranges_.may_take(*connection); !may.ok()) {
      return refuse(stranger, may.error().kind, may.error().message);
    }
    options_.events.write("source_connected", connection->peer());
    ranges_.take(std::move(connection), welcome());
    return false;
  }
  if (hello->role != wire::Role::kHost) {
    if (hello->role == wire::Role::kEcho && echoes_.size() >= kMaxEchoes) {
      return refuse(stranger, ErrorKind::kMemory,
                    std::to_string(kMaxEchoes) + " measurements are under way already");
    }
    if (hello->role == wire::Role::kEcho && greet_echo(*hello, connection)) return false;
    if (hello->role != wire::Role::kEcho && greet_link(*hello, connection))
      return false;  // it has moved on
    return refuse(stranger, ErrorKind::kInvalid, "no stage here expects a link with this key");
  }
  if (options_.admit && connection->channel() != nullptr) {
    if (const Status let = options_.admit(connection->channel()->peer()); !let.ok()) {
      log(connection->peer() + ": refused device " + hex(connection->channel()->peer()) + ": " +
          let.error().message);
      return refuse(stranger, let.error().kind, let.error().message);
    }
  }
  if (sessions_.size() >= kMaxSessions) {
    // A host that asked for nothing yet makes room.
    const auto idle = std::find_if(sessions_.begin(), sessions_.end(), [](const auto& session) {
      return !session->loading && !session->ready;
    });
    if (idle != sessions_.end()) end(std::shared_ptr<Session>(*idle));
  }
  if (sessions_.size() >= kMaxSessions) {
    return refuse(stranger, ErrorKind::kMemory,
                  "this worker serves " + std::to_string(kMaxSessions) + " hosts already");
  }
  sessions_.push_back(std::make_shared<Session>(std::move(connection)));
  count_sessions();
  sessions_.back()->tell(wire::Type::kWelcome, welcome());
  metrics_.hosts.add();
  options_.events.write("host_connected", sessions_.back()->peer, {{"software", hello->software}});
  const wire::TlsChannel* channel = sessions_.back()->control->channel();
  log(sessions_.back()->peer + ": host connected (" + hello->software + ")" +
      (channel == nullptr ? "" : ", device " + hex(channel->peer()) + ", code " + channel->code()));
  return false;
}

bool WorkerEngine::greet_link(const wire::Hello& hello,
                              std::unique_ptr<wire::Connection>& connection) {
  const bool in = hello.role == wire::Role::kLinkIn;
  for (const auto& session : sessions_) {
    std::optional<wire::Key>& key = in ? session->in_key : session->out_key;
    if (!key || !equal(*key, hello.key)) continue;
    key.reset();  // each key opens one link
    std::shared_ptr<wire::Connection> link = std::move(connection);
    // Before the compute thread knows the link: what it writes must come after this.
    if (!link->send({.type = wire::Type::kWelcome}, welcome()).ok()) return true;
    if (in) {
      compute_->link_in(session, session->activation, std::move(link));
    } else {
      compute_->link_out(session, session->activation, std::move(link), true);
    }
    return true;
  }
  return false;
}

bool WorkerEngine::greet_echo(const wire::Hello& hello,
                              std::unique_ptr<wire::Connection>& connection) {
  const bool expected = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& session) {
    return session->in_key && equal(*session->in_key, hello.key);
  });
  if (!expected) return false;
  echoes_.push_back({std::move(connection), wire::Clock::now() + kEchoTime});
  if (!echoes_.back().connection->send({.type = wire::Type::kWelcome}, welcome()).ok()) {
    echoes_.pop_back();
  }
  return true;
}

bool WorkerEngine::answer(wire::Connection& echo) {
  if (echo.pending()) return echo.flush().ok();
  for (int i = 0; i < 16 && !echo.pending(); ++i) {
    const auto step = echo.read([&](const wire::Header& header) -> Result<wire::Connection::Place> {
      if (header.type != wire::Type::kEcho) {
        return invalid("a " + std::string(wire::name(header.type)) + " frame, expected an echo");
      }
      return echo.to_payload(header);
    });
    if (!step.ok() || *step == wire::Connection::Step::kClosed) return false;
    if (*step == wire::Connection::Step::kNothing) return true;
    if (!answer_echo(echo).ok()) return false;
  }
  return true;
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
  const auto deadline = wire::Clock::now() + kDialTimeout;
  if ((options_.tls == nullptr) != (pin == Digest{})) {
    return invalid(
        "a host without TLS can't have a worker with TLS connect to others, or the reverse");
  }
  TANDEM_ASSIGN(wire::Socket socket, options_.dialler ? options_.dialler(where, kDialTimeout)
                                                      : wire::dial_tcp(where, kDialTimeout));
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
