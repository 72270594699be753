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
constexpr auto kPatience = 15s;
/// Twice a ping's interval and more: whoever has not been heard for so long may stand still.
constexpr auto kUnheard = 1200ms;
constexpr auto kStall = 3500ms;
constexpr auto kSuspicion = 1s;
/// A stage is slow if passes of one token take so many times as long as they once did, on the mean
/// between two pongs, in so many pongs one after the other.
constexpr uint64_t kSlowFactor = 8;
constexpr uint32_t kSlowPongs = 10;
constexpr uint64_t kLeastSlowUs = 2000;
/// Passes that make a mean worth comparing with.
constexpr uint64_t kPaceOfPasses = 16;

std::string seconds(uint32_t milliseconds) {
  return std::to_string(milliseconds / 1000) + "." + std::to_string(milliseconds % 1000 / 100) +
         " s";
}

}  // namespace

Monitor::Monitor(std::span<Peer* const> peers, std::span<Peer* const> spares, uint64_t activation,
                 const wire::Wake& lap, bool patient)
    : activation_(activation), patient_(patient), lap_wake_(lap) {
  const auto now = wire::Clock::now();
  auto watch = [&](Peer* peer, bool spare) {
    Watched watched;
    watched.peer = peer;
    watched.heard = now;
    watched.spare = spare;
    watched_.push_back(watched);
  };
  for (Peer* peer : peers) watch(peer, false);
  for (Peer* peer : spares) watch(peer, true);
  last_loop_ = still_since_ = now;
  if (!watched_.empty()) thread_ = std::thread([this] { loop(); });
}

Monitor::~Monitor() {
  stopping_ = true;
  wake_.wake();
  if (thread_.joinable()) thread_.join();
}

void Monitor::watch(Peer* spare) {
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(spare);
  }
  wake_.wake();
}

std::optional<Error> Monitor::failure() const {
  if (!failed()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Monitor::fail_locked(Peer* peer, Error error) {
  if (failure_) return;
  if (peer != nullptr) peer->fail(error);
  failure_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
  lap_wake_.wake();
}

void Monitor::fail(Watched& watched, const Error& error) {
  const std::lock_guard lock(mutex_);
  const Error blamed = watched.peer->blame(error);
  if (!watched.spare) return fail_locked(watched.peer, blamed);
  if (watched.gone) return;
  watched.gone = true;
  watched.peer->fail(blamed);
  tell_locked(Event::Kind::kLost, *watched.peer, "spare " + blamed.message);
}

void Monitor::tell_locked(Event::Kind kind, const Peer& peer, const std::string& text) {
  events_.push_back({kind, peer.worker.label(), text});
  has_events_.store(true, std::memory_order_release);
  lap_wake_.wake();
}

std::vector<Event> Monitor::take_events() {
  const std::lock_guard lock(mutex_);
  has_events_.store(false, std::memory_order_release);
  return std::exchange(events_, {});
}

Monitor::Link Monitor::link() const {
  const std::lock_guard lock(mutex_);
  return link_;
}

Error Monitor::blame(Peer* peer, const Error& error) {
  const std::lock_guard lock(mutex_);
  fail_locked(peer, peer->blame(error));
  return *failure_;
}

Error Monitor::verdict(Peer* peer, const Error& error) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, 1500ms, [&] { return failure_.has_value(); });
  if (patient_ && !failure_) link_ = {peer, nullptr, false};
  fail_locked(patient_ ? nullptr : peer, peer->blame(error));
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
    return std::all_of(watched_.begin(), watched_.end(), [&](const Watched& watched) {
      return watched.spare || watched.pongs >= awaited;
    });
  });
  std::vector<wire::Pong> pongs;
  for (const Watched& watched : watched_) {
    if (!watched.spare) pongs.push_back(watched.pong);
  }
  return pongs;
}

void Monitor::loop() {
  std::vector<pollfd> polled;
  auto next_ping = wire::Clock::now();
  while (!stopping_ && !failed()) {
    const auto now = wire::Clock::now();
    {
      const std::lock_guard lock(mutex_);
      for (Peer* spare : std::exchange(arrivals_, {})) {
        watched_.emplace_back();
        watched_.back().peer = spare;
        watched_.back().heard = now;
        watched_.back().spare = true;
      }
    }
    if (ping_now_.exchange(false) || now >= next_ping) {
      next_ping = now + kPingEvery;
      {
        const std::lock_guard lock(mutex_);
        ++pings_;
      }
      for (Watched& watched : watched_) {
        if (watched.gone) continue;
        const Status sent = watched.peer->control->send({.type = wire::Type::kPing});
        if (!sent.ok()) fail(watched, sent.error());
      }
    }
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    for (const Watched& watched : watched_) {
      const bool pending = watched.peer->control->pending();
      polled.push_back({watched.gone ? -1 : watched.peer->control->fd(),
                        static_cast<short>(POLLIN | (pending ? POLLOUT : 0)), 0});
    }
    const auto wait = std::min(next_ping, wire::Clock::now() + 250ms);
    if (::poll(polled.data(), polled.size(), wire::poll_timeout(wait)) < 0) continue;
    if (polled[0].revents != 0) wake_.clear();
    for (size_t i = 0; i < watched_.size(); ++i) {
      const auto events = polled[i + 1].revents;
      if ((events & POLLOUT) != 0) {
        const Status flushed = watched_[i].peer->control->flush();
        if (!flushed.ok()) fail(watched_[i], flushed.error());
      }
      if ((events & ~POLLOUT) != 0) listen(watched_[i]);
    }
    judge();
  }
}

void Monitor::listen(Watched& watched) {
  wire::Connection& control = *watched.peer->control;
  auto bad = [&](const Error& error) { fail(watched, error); };
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
      const auto now = wire::Clock::now();
      if (pong->busy == 0 || pong->pass_ms < watched.excused_ms) {
        watched.excused_ms = 0;
      } else if (patient_ && now - watched.heard > kUnheard) {
        // It stood still, and its pass with it.
        watched.excused_ms = pong->pass_ms;
      }
      watched.pong = *pong;
      watched.heard = now;
      ++watched.pongs;
      if (watched.silent) {
        watched.silent = false;
        tell_locked(Event::Kind::kBack, *watched.peer, watched.peer->name() + " answers again");
      }
      judge_speed(watched);
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
  const std::lock_guard lock(mutex_);
  if (trouble.link_lost) {
    const bool in = trouble.blame == wire::Blame::kUpstream;
    Peer* other = in ? peer->upstream : peer->downstream;
    if (suspicion_) return;
    suspicion_ = Error{ErrorKind::kPeer, "the link between " + peer->name() + " and " +
                                             (other == nullptr ? "the host" : other->name()) +
                                             " broke: " + text};
    suspicion_until_ = wire::Clock::now() + kSuspicion;
    suspected_ = in ? Link{other, peer, false} : Link{peer, other, false};
    return;
  }
  if (trouble.blame == wire::Blame::kUpstream) {
    if (peer->upstream != nullptr) {
      return fail_locked(peer->upstream,
                         peer->upstream->blame(
                             {ErrorKind::kPeer, "sent nonsense to " + peer->name() + ": " + text}));
    }
    return fail_locked(nullptr,
                       {ErrorKind::kPeer, peer->name() + " can't use what the host sent: " + text});
  }
  fail_locked(peer, peer->blame({trouble.kind, text}));
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
  if (suspicion_ && now >= suspicion_until_) {
    link_ = suspected_;
    return fail_locked(nullptr, *suspicion_);
  }
  if (!running_.load(std::memory_order_acquire)) {
    still_since_ = now;
    return;
  }
  for (Watched& watched : watched_) {
    if (watched.gone) continue;
    judge_silence(watched, now);
    if (failure_) return;
    // The pong may be as old as a ping's interval, and a new pass may have begun since.
    const uint32_t ran = watched.pong.pass_ms - std::min(watched.pong.pass_ms, watched.excused_ms);
    if (!watched.spare && watched.pong.busy != 0 && ran > watched.pong.allowed_ms) {
      return fail_locked(
          watched.peer,
          watched.peer->blame({ErrorKind::kPeer, "hangs: a pass has run for " + seconds(ran) +
                                                     ", where " + seconds(watched.pong.allowed_ms) +
                                                     " are more than enough"}));
    }
  }
  judge_stall();
}

void Monitor::judge_silence(Watched& watched, wire::Clock::time_point now) {
  const wire::Clock::time_point started{wire::Clock::duration(lap_started_.load())};
  const auto silent = now - std::max(watched.heard, started);
  const auto longest = patient_ ? wire::Clock::duration(kPatience) : kSilence;
  if (silent > longest) {
    const Error error =
        watched.peer->blame({ErrorKind::kPeer, patient_ ? "silent for 15 s" : "silent for 3.5 s"});
    if (!watched.spare) {
      watched.peer->frozen = true;
      return fail_locked(watched.peer, error);
    }
    watched.gone = true;
    watched.peer->fail(error);
    return tell_locked(Event::Kind::kLost, *watched.peer, "spare " + error.message);
  }
  if (silent > kSilence && !watched.silent && !watched.spare) {
    watched.silent = true;
    tell_locked(Event::Kind::kSilent, *watched.peer, watched.peer->name() + " is silent");
  }
}

void Monitor::judge_speed(Watched& watched) {
  const wire::Pong& pong = watched.pong;
  if (watched.spare || pong.single_passes <= watched.singles ||
      pong.single_us < watched.singles_us) {
    return;
  }
  const bool first = watched.singles == 0;
  const uint64_t passes = pong.single_passes - watched.singles;
  const uint64_t mean = (pong.single_us - watched.singles_us) / passes;
  watched.singles = pong.single_passes;
  watched.singles_us = pong.single_us;
  // Those from before this watch began may be of other times.
  if (first) return;
  // A large model takes more than a pong's interval for as many passes.
  watched.pace_passes += passes;
  watched.pace_us += mean * passes;
  if (watched.pace_passes >= kPaceOfPasses) {
    const uint64_t pace = std::max<uint64_t>(watched.pace_us / watched.pace_passes, 1);
    if (watched.best_us == 0 || pace < watched.best_us) watched.best_us = pace;
    watched.pace_passes = watched.pace_us = 0;
  }
  const bool slow =
      watched.best_us != 0 && mean > kLeastSlowUs && mean / kSlowFactor > watched.best_us;
  watched.slow_pongs = slow ? watched.slow_pongs + 1 : 0;
  if (watched.slow || watched.slow_pongs < kSlowPongs) return;
  watched.slow = true;
  tell_locked(Event::Kind::kSlow, *watched.peer,
              watched.peer->name() + " has become slow: a pass takes " +
                  std::to_string(mean / 1000) + " ms, it took " +
                  std::to_string(watched.best_us / 1000) + "." +
                  std::to_string(watched.best_us % 1000 / 100));
}

void Monitor::judge_stall() {
  const auto now = wire::Clock::now();
  uint64_t signature = moves_.load(std::memory_order_relaxed);
  bool busy = host_computes_.load(std::memory_order_relaxed);
  for (const Watched& watched : watched_) {
    if (watched.spare) continue;
    signature += watched.pong.passes + watched.pong.received + watched.pong.sent +
                 watched.pong.bytes_in + watched.pong.bytes_out;
    busy = busy || watched.pong.busy != 0;
    // What is not known may have moved; silence is judged for itself.
    if (patient_) busy = busy || now - watched.heard > kUnheard;
  }
  const wire::Clock::time_point started{wire::Clock::duration(lap_started_.load())};
  if (busy || signature != last_signature_ || still_since_ < started) {
    last_signature_ = signature;
    still_since_ = now;
    return;
  }
  if (now - still_since_ < kStall) return;
  if (watched_.front().spare) return;  // all layers are the host's
  const Watched* before = nullptr;
  const Watched* last = &watched_.front();
  for (const Watched& watched : watched_) {
    if (watched.spare) continue;
    last = &watched;
    if (before != nullptr && watched.peer->upstream == before->peer &&
        before->pong.sent > watched.pong.received) {
      link_ = {before->peer, watched.peer, true};
      return fail_locked(nullptr,
                         {ErrorKind::kPeer, "the link between " + before->peer->name() + " and " +
                                                watched.peer->name() + " stalls: of " +
                                                std::to_string(before->pong.sent) + " frames " +
                                                std::to_string(watched.pong.received) + " came"});
    }
    before = &watched;
    if (watched.pong.received <= watched.pong.sent) continue;
    return fail_locked(
        watched.peer,
        watched.peer->blame({ErrorKind::kPeer,
                             "lost a frame: it received " + std::to_string(watched.pong.received) +
                                 " and sent on " + std::to_string(watched.pong.sent)}));
  }
  fail_locked(nullptr, {ErrorKind::kPeer,
                        "a frame was lost between " + watched_.front().peer->name() + " and " +
                            last->peer->name() + ": nothing has moved for 3.5 s"});
}

}  // namespace tandem::ring
