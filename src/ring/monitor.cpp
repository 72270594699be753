#include "ring/monitor.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

constexpr auto kPingEvery = 500ms;
constexpr auto kSilence = 3500ms;
constexpr auto kStall = 3500ms;
constexpr auto kSuspicion = 1s;

std::string seconds(uint32_t milliseconds) {
  return std::to_string(milliseconds / 1000) + "." + std::to_string(milliseconds % 1000 / 100) +
         " s";
}

}  // namespace

Monitor::Monitor(std::span<Peer* const> peers, uint64_t activation, const wire::Wake& lap)
    : activation_(activation), lap_wake_(lap) {
  const auto now = wire::Clock::now();
  for (Peer* peer : peers) watched_.push_back({peer, {}, now, 0});
  last_loop_ = still_since_ = now;
  if (!watched_.empty()) thread_ = std::thread([this] { loop(); });
}

Monitor::~Monitor() {
  stopping_ = true;
  wake_.wake();
  if (thread_.joinable()) thread_.join();
}

std::optional<Error> Monitor::failure() const {
  if (!failed()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Monitor::fail_locked(Peer* peer, Error error) {
  if (failure_) return;
  if (peer != nullptr) peer->healthy = false;
  failure_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
  lap_wake_.wake();
}

void Monitor::fail(Peer* peer, Error error) {
  const std::lock_guard lock(mutex_);
  fail_locked(peer, std::move(error));
}

Error Monitor::blame(Peer* peer, const Error& error) {
  const std::lock_guard lock(mutex_);
  fail_locked(peer, peer->blame(error));
  return *failure_;
}

Error Monitor::verdict(Peer* peer, const Error& error) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, 1500ms, [&] { return failure_.has_value(); });
  fail_locked(peer, peer->blame(error));
  return *failure_;
}

void Monitor::begin() {
  lap_started_ = wire::Clock::now().time_since_epoch().count();
  running_.store(true, std::memory_order_release);
}

void Monitor::end() {
  running_.store(false, std::memory_order_release);
}

std::vector<wire::Pong> Monitor::counters() {
  std::unique_lock lock(mutex_);
  // Not the next pong, which may be on its way already and older than the last lap.
  const uint64_t awaited = pings_ + 1;
  ping_now_ = true;
  wake_.wake();
  changed_.wait_for(lock, 1s, [&] {
    if (failure_) return true;
    return std::all_of(watched_.begin(), watched_.end(),
                       [&](const Watched& watched) { return watched.pongs >= awaited; });
  });
  std::vector<wire::Pong> pongs;
  for (const Watched& watched : watched_) pongs.push_back(watched.pong);
  return pongs;
}

void Monitor::loop() {
  std::vector<pollfd> polled;
  auto next_ping = wire::Clock::now();
  while (!stopping_ && !failed()) {
    const auto now = wire::Clock::now();
    if (ping_now_.exchange(false) || now >= next_ping) {
      next_ping = now + kPingEvery;
      {
        const std::lock_guard lock(mutex_);
        ++pings_;
      }
      for (Watched& watched : watched_) {
        const Status sent = watched.peer->control->send({.type = wire::Type::kPing});
        if (!sent.ok()) fail(watched.peer, watched.peer->blame(sent.error()));
      }
    }
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    for (const Watched& watched : watched_) {
      const bool pending = watched.peer->control->pending();
      polled.push_back(
          {watched.peer->control->fd(), static_cast<short>(POLLIN | (pending ? POLLOUT : 0)), 0});
    }
    const auto wait = std::min(next_ping, wire::Clock::now() + 250ms);
    if (::poll(polled.data(), polled.size(), wire::poll_timeout(wait)) < 0) continue;
    if (polled[0].revents != 0) wake_.clear();
    for (size_t i = 0; i < watched_.size(); ++i) {
      const auto events = polled[i + 1].revents;
      if ((events & POLLOUT) != 0) {
        const Status flushed = watched_[i].peer->control->flush();
        if (!flushed.ok()) fail(watched_[i].peer, watched_[i].peer->blame(flushed.error()));
      }
      if ((events & ~POLLOUT) != 0) listen(watched_[i]);
    }
    judge();
  }
}

void Monitor::listen(Watched& watched) {
  wire::Connection& control = *watched.peer->control;
  auto bad = [&](const Error& error) { fail(watched.peer, watched.peer->blame(error)); };
  for (;;) {
    const auto step =
        control.read([&](const wire::Header& header) -> Result<wire::Connection::Place> {
          if (header.length > 4096) return invalid("sent an unexpected frame");
          return control.to_payload(header);
        });
    if (!step.ok()) return bad(step.error());
    if (*step == wire::Connection::Step::kClosed) {
      return bad({ErrorKind::kPeer, "closed the connection (did it end?)"});
    }
    if (*step == wire::Connection::Step::kNothing) return;
    const wire::Header& header = control.header();
    if (header.type == wire::Type::kPong) {
      const auto pong = wire::Pong::decode(control.payload());
      if (!pong.ok()) return bad(pong.error());
      const std::lock_guard lock(mutex_);
      watched.pong = *pong;
      watched.heard = wire::Clock::now();
      ++watched.pongs;
      changed_.notify_all();
    } else if (header.type == wire::Type::kTrouble) {
      const auto trouble = wire::Trouble::decode(control.payload());
      if (!trouble.ok()) return bad(trouble.error());
      if (trouble->activation == activation_) on_trouble(watched, *trouble);
    } else if (header.type == wire::Type::kRefusal) {
      const auto refusal = wire::Refusal::decode(control.payload());
      return bad(refusal.ok() ? Error{refusal->kind, "refused: " + refusal->reason}
                              : refusal.error());
    } else if (header.type != wire::Type::kDialed && header.type != wire::Type::kActivated) {
      return bad(invalid("sent an unexpected " + std::string(wire::name(header.type)) + " frame"));
    }
  }
}

void Monitor::on_trouble(Watched& watched, const wire::Trouble& trouble) {
  Peer* peer = watched.peer;
  const std::string text = trouble.text;
  if (trouble.link_lost) {
    const Peer* other = trouble.blame == wire::Blame::kUpstream ? peer->upstream : peer->downstream;
    const std::lock_guard lock(mutex_);
    if (suspicion_) return;
    suspicion_ = Error{ErrorKind::kPeer, "the link between " + peer->name() + " and " +
                                             (other == nullptr ? "the host" : other->name()) +
                                             " broke: " + text};
    suspicion_until_ = wire::Clock::now() + kSuspicion;
    return;
  }
  if (trouble.blame == wire::Blame::kUpstream) {
    if (peer->upstream != nullptr) {
      return fail(peer->upstream,
                  peer->upstream->blame(
                      {ErrorKind::kPeer, "sent nonsense to " + peer->name() + ": " + text}));
    }
    return fail(nullptr,
                {ErrorKind::kPeer, peer->name() + " can't use what the host sent: " + text});
  }
  fail(peer, peer->blame({trouble.kind, text}));
}

void Monitor::judge() {
  const auto now = wire::Clock::now();
  const bool paused = now - last_loop_ > 1s;  // this process slept, not the workers
  last_loop_ = now;
  const std::lock_guard lock(mutex_);
  if (paused) {
    for (Watched& watched : watched_) watched.heard = now;
    still_since_ = now;
  }
  if (failure_) return;
  if (suspicion_ && now >= suspicion_until_) return fail_locked(nullptr, *suspicion_);
  if (!running_.load(std::memory_order_acquire)) {
    still_since_ = now;
    return;
  }
  const wire::Clock::time_point started{wire::Clock::duration(lap_started_.load())};
  for (Watched& watched : watched_) {
    const auto silent = now - std::max(watched.heard, started);
    if (silent > kSilence) {
      return fail_locked(watched.peer, watched.peer->blame({ErrorKind::kPeer, "silent for 3.5 s"}));
    }
    // The pong may be as old as a ping's interval, and a new pass may have begun since.
    if (watched.pong.busy != 0 && watched.pong.pass_ms > watched.pong.allowed_ms) {
      return fail_locked(
          watched.peer,
          watched.peer->blame({ErrorKind::kPeer, "hangs: a pass has run for " +
                                                     seconds(watched.pong.pass_ms) + ", where " +
                                                     seconds(watched.pong.allowed_ms) +
                                                     " are more than enough"}));
    }
  }
  judge_stall();
}

void Monitor::judge_stall() {
  const auto now = wire::Clock::now();
  uint64_t signature = moves_.load(std::memory_order_relaxed);
  bool busy = host_computes_.load(std::memory_order_relaxed);
  for (const Watched& watched : watched_) {
    signature += watched.pong.passes + watched.pong.received + watched.pong.sent +
                 watched.pong.bytes_in + watched.pong.bytes_out;
    busy = busy || watched.pong.busy != 0;
  }
  const wire::Clock::time_point started{wire::Clock::duration(lap_started_.load())};
  if (busy || signature != last_signature_ || still_since_ < started) {
    last_signature_ = signature;
    still_since_ = now;
    return;
  }
  if (now - still_since_ < kStall) return;
  for (const Watched& watched : watched_) {
    if (watched.pong.received <= watched.pong.sent) continue;
    return fail_locked(
        watched.peer,
        watched.peer->blame({ErrorKind::kPeer,
                             "lost a frame: it received " + std::to_string(watched.pong.received) +
                                 " and sent on " + std::to_string(watched.pong.sent)}));
  }
  fail_locked(nullptr, {ErrorKind::kPeer,
                        "a frame was lost between " + watched_.front().peer->name() + " and " +
                            watched_.back().peer->name() + ": nothing has moved for 3.5 s"});
}

}  // namespace tandem::ring
