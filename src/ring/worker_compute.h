// The worker's compute thread: reads hidden states off the links of all sessions, runs the stages,
// and writes the results on. It waits on the links itself, so a hop costs one wake-up.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "observe/event_log.h"
#include "ring/meter.h"
#include "ring/worker_metrics.h"
#include "ring/worker_session.h"
#include "wire/tcp.h"

namespace tandem::ring {

class WorkerCompute {
 public:
  /// `flush` is woken when a link's output is left pending: the IO thread writes it.
  /// Both outlive it, and so do the metrics.
  WorkerCompute(const wire::Wake& flush, WorkerMetrics& metrics, const observe::EventLog& events);
  ~WorkerCompute();
  WorkerCompute(const WorkerCompute&) = delete;
  WorkerCompute& operator=(const WorkerCompute&) = delete;

  /// The session's stage starts from nothing, and takes only links added from now on.
  void activate(std::shared_ptr<Session> session);
  /// `activation` is the session's when the link was asked for; a link of an earlier one is
  /// dropped.
  void link_in(std::shared_ptr<Session> session, uint64_t activation,
               std::shared_ptr<wire::Connection> link);
  /// `to_host`: the link's other end is the host, which gets only the rows that it wants.
  void link_out(std::shared_ptr<Session> session, uint64_t activation,
                std::shared_ptr<wire::Connection> link, bool to_host);
  /// Times passes of the session's stage, in turn with what others have it run, and tells the host.
  /// The session must not be active.
  void measure(std::shared_ptr<Session> session, wire::Measure request);
  /// Forgets the session and its KV cache.
  void remove(std::shared_ptr<Session> session);
  /// A link's pending output was written.
  void flushed() { wake_.wake(); }
  void stop();

  /// The pass under way, for pongs.
  struct Pass {
    bool busy = false;
    uint32_t running_ms = 0;
    uint32_t allowed_ms = 0;
  };
  [[nodiscard]] Pass pass() const;
  [[nodiscard]] uint64_t passes() const { return passes_.load(std::memory_order_relaxed); }

 private:
  struct Lane;
  struct Command;
  void post(Command command);
  void loop();
  void obey();
  void measure_some();
  Lane* find(const Session& session);
  /// Reads what is there of a frame, and handles it when it is whole. False: nothing was there.
  bool receive(Lane& lane);
  /// Looks for the frame that `lane` expects, without sleeping, until the window has passed.
  void watch(Lane& lane, wire::Clock::time_point until);
  void handle(Lane& lane, const wire::Header& header);
  Status control(Lane& lane, const wire::Header& header);
  void trouble(Lane& lane, wire::Blame blame, bool link_lost, const Error& error);

  const wire::Wake& flush_;
  WorkerMetrics& metrics_;
  const observe::EventLog& events_;
  wire::Wake wake_;
  std::mutex mutex_;  ///< guards commands_
  std::vector<Command> commands_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> passes_{0};
  std::atomic<int64_t> pass_started_{0};  ///< steady clock's nanoseconds, 0 while idle
  std::atomic<uint32_t> pass_allowed_{0};
  std::vector<std::unique_ptr<Lane>> lanes_;  ///< the compute thread's
  struct Measurement {
    std::shared_ptr<Session> session;
    std::unique_ptr<StageMeter> meter;
    bool under_way = false;
  };
  /// Likewise. A session's stays for its next one, until the session becomes active.
  std::vector<Measurement> measurements_;
  std::thread thread_;
};

}  // namespace tandem::ring
