// A device that lends itself to a room: the ring's worker, and what keeps it known at the hub.
//
// Three threads beside the worker's own. The first tells the hub every 15 s what the device has and
// applies what its owner set; it also renews leases. The second waits for jobs, the third for calls
// through the hub's relay. None of them is on the way of an answer: a hub that is away only delays
// what is new.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"
#include "hub/client.h"
#include "hub/settings.h"
#include "ring/worker.h"
#include "room/entry.h"
#include "room/grants.h"
#include "room/relay.h"
#include "room/sharing.h"

namespace tandem::room {

struct AgentOptions {
  std::string name;  ///< of the device
  ring::WorkerOptions
      worker;  ///< `memory` is the most that is lent; `tls` and `admit` are not read
  /// Measures how fast the memory is read, in bytes/s; takes a second, all threads, and up to 4
  /// GiB. Called once, when nobody has used the device for a while. May be empty.
  std::function<double()> bandwidth;
  SharingOptions sharing;  ///< where weights come from, and whom they are given to
  /// HOST:PORT that others reach the worker by, where that is not what it listens at; or empty.
  std::string address;
  std::filesystem::path settings;             ///< TOML file of the owner's settings, or empty
  std::function<void()> waiting;              ///< told once the device waits in the lobby
  const std::atomic<bool>* cancel = nullptr;  ///< ends start()
};

class Agent {
 public:
  /// Joins the room and begins to lend. Errors: those of Home::connect(), enter(), room_tls() and
  /// Worker::start(), and the settings file's.
  static Result<std::unique_ptr<Agent>> start(hub::Home home, Way way, AgentOptions options);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// HOST:PORT that the worker listens at.
  [[nodiscard]] const std::string& address() const { return worker_->address(); }
  /// Set once the room is gone, or the device was sent away; says which.
  [[nodiscard]] std::optional<std::string> ended() const;
  /// Leaves: takes no more work, lets the hub know, and stops.
  void stop();

 private:
  Agent(hub::Home home, Way way, AgentOptions options);
  Result<hub::Client> connect();
  void log(const std::string& line) const;
  void keep_known();
  void take_jobs();
  void take_calls(int64_t after);
  /// One heartbeat. False: the hub did not take it.
  bool beat(hub::Client& client);
  void apply(const hub::OwnerSettings& owner);
  void renew(hub::Client& client);
  void measure_bandwidth(Clock::time_point started);
  void lease_all(hub::Client& client);
  Status take(hub::Client& client, const Json& job);
  [[nodiscard]] Json report() const;
  Result<hub::OwnerSettings> local_settings();
  /// Sleeps until `until`, a wake-up or the end.
  void rest(Clock::time_point until);
  /// Sleeps for so long, or until the end.
  void pause_for(std::chrono::milliseconds time);
  void hub_state(bool here, const std::string& why);

  hub::Home home_;
  Way way_;
  AgentOptions options_;
  std::shared_ptr<const wire::Tls> tls_;
  Grants grants_;
  std::unique_ptr<Sharing> sharing_;  ///< before the worker, which uses it
  std::atomic<bool> stopping_{false};
  std::unique_ptr<ring::Worker> worker_;
  std::shared_ptr<Relay> relay_;  // after the worker, which gets its streams
  mutable std::mutex mutex_;      ///< guards what follows
  std::condition_variable changed_;
  bool beat_now_ = false;
  bool hub_here_ = true;
  uint64_t limit_ = 0;    ///< memory lent as settings and flags have it; 0: no limit
  double bandwidth_ = 0;  ///< bytes/s; 0: not measured
  std::string why_;       ///< why no work is taken, or empty
  std::optional<std::string> ended_;
  Json told_;                 ///< of what it holds; known_'s alone
  hub::OwnerSettings owner_;  ///< as the hub last said; of start() and then of known_ alone
  std::thread known_;
  std::thread jobs_;
  std::thread calls_;
};

}  // namespace tandem::room
