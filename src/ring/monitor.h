// Watches the workers of a ring while it runs: pings them, listens for their troubles, and decides
// who failed.
//
// A worker has failed if its connection closes; if it is silent for 3.5 s while a lap is under way
// (its IO thread answers pings whatever its compute thread does), or for 15 s where that is only
// reported at first; if a pass takes 8 times as long as passes of its size took before, and 3.5 s
// at least (a slow stage is not a failed one); if it says that it failed; or if for 3.5 s nothing
// moves anywhere though a lap is under way, and it is the first that received more frames than it
// sent. A broken link between two workers is nobody's fault until one of them turns out to be dead:
// that gets a second to show. Nor is one that stalls: what was sent into it has not come out.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ring/event.h"
#include "ring/host_peer.h"
#include "wire/tcp.h"

namespace tandem::ring {

class Monitor {
 public:
  /// Watches `peers`, in ring order, from now on, and `spares`, whose failure only makes them
  /// unhealthy. Wakes `lap` on failure and events. `activation` is the current one: troubles of
  /// earlier ones are history. `patient`: silence is an event after 3.5 s, and a failure after 15.
  Monitor(std::span<Peer* const> peers, std::span<Peer* const> spares, uint64_t activation,
          const wire::Wake& lap, bool patient);
  /// Stops watching.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// The failure, if there was one. Stays.
  [[nodiscard]] std::optional<Error> failure() const;
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// A link to `peer` broke: waits until it shows who is dead, at most a second and a half. If
  /// nothing shows, `peer` is blamed with `error`; if patient, the link alone.
  Error verdict(Peer* peer, const Error& error);
  /// Blames `peer` now.
  Error blame(Peer* peer, const Error& error);

  /// The workers between which a link broke or stalled, if that is the failure; one of them null:
  /// the host. Both null: it is not.
  struct Link {
    Peer* from = nullptr;
    Peer* to = nullptr;
    bool stalled = false;
  };
  [[nodiscard]] Link link() const;
  /// Takes what has happened since. `events()`: there is something.
  std::vector<Event> take_events();
  [[nodiscard]] bool events() const { return has_events_.load(std::memory_order_acquire); }

  /// Watches one more spare. There has to be a peer already.
  void watch(Peer* spare);

  /// A lap is under way from begin to end.
  void begin();
  void end();
  /// The host got a frame, or finished a pass of its own.
  void moved() { moves_.fetch_add(1, std::memory_order_relaxed); }
  void computing(bool now) { host_computes_.store(now, std::memory_order_relaxed); }

  /// The counters of all peers, in order; asks anew and waits for at most a second.
  std::vector<wire::Pong> counters();

 private:
  struct Watched {
    Peer* peer = nullptr;
    wire::Pong pong;
    wire::Clock::time_point heard;
    uint64_t pongs = 0;
    bool spare = false;
    bool gone = false;         ///< a spare that is not watched any more
    bool silent = false;       ///< that was told
    uint32_t excused_ms = 0;   ///< of the pass under way: what it did not run for
    uint64_t singles = 0;      ///< passes of one token that were judged
    uint64_t singles_us = 0;   ///< what these took
    uint64_t best_us = 0;      ///< least mean of them between two pongs
    uint64_t pace_passes = 0;  ///< of several pongs, until they are enough for a pace
    uint64_t pace_us = 0;
    uint32_t slow_pongs = 0;  ///< one after the other that showed it slow
    bool slow = false;        ///< that was told
  };
  void loop();
  void listen(Watched& watched);
  void judge();
  void judge_silence(Watched& watched, wire::Clock::time_point now);
  void judge_speed(Watched& watched);
  void judge_stall();
  void on_trouble(Watched& watched, const wire::Trouble& trouble);
  void fail_locked(Peer* peer, Error error);
  void fail(Watched& watched, const Error& error);
  void tell_locked(Event::Kind kind, const Peer& peer, const std::string& text);

  const uint64_t activation_;
  const bool patient_;
  const wire::Wake& lap_wake_;
  wire::Wake wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> ping_now_{false};
  std::atomic<bool> running_{false};
  std::atomic<bool> host_computes_{false};
  std::atomic<bool> has_events_{false};
  std::atomic<uint64_t> moves_{0};
  std::atomic<int64_t> lap_started_{0};

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::vector<Watched> watched_;
  std::vector<Peer*> arrivals_;  ///< spares that the thread is to watch
  uint64_t pings_ = 0;
  std::optional<Error> failure_;
  std::vector<Event> events_;
  Link link_;
  std::optional<Error> suspicion_;  ///< becomes the failure at suspicion_until_
  Link suspected_;
  wire::Clock::time_point suspicion_until_;

  // The monitor thread's.
  wire::Clock::time_point last_loop_;
  wire::Clock::time_point still_since_;
  uint64_t last_signature_ = 0;
  std::thread thread_;
};

}  // namespace tandem::ring
