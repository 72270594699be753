// Who is let in at a worker's door: hosts, other workers' links and whoever measures the way to
// here.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "ring/worker_engine.h"

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMaxStrangers = 256;
constexpr size_t kMaxSessions = 32;
constexpr auto kRefusedLinger = 1s;
constexpr size_t kMaxEchoes = 16;
constexpr auto kEchoTime = 10s;  // twice what measuring a link may take

/// In a time that does not tell how many bytes were right.
bool equal(const wire::Key& a, const wire::Key& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

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

}  // namespace tandem::ring
