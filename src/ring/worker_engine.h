// The worker's IO thread: accepts, greets, dispatches what hosts ask for, answers pings, and writes
// what sockets did not take at once. It never computes, loads or waits for one client.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ring/stage_cache.h"
#include "ring/tasks.h"
#include "ring/worker.h"
#include "ring/worker_compute.h"
#include "ring/worker_metrics.h"
#include "ring/worker_session.h"
#include "weights/manifest.h"
#include "wire/tcp.h"

namespace tandem::ring {

class WorkerEngine {
 public:
  WorkerEngine(WorkerOptions options, wire::Listener listener,
               std::optional<weights::ModelLibrary> library);
  ~WorkerEngine();
  WorkerEngine(const WorkerEngine&) = delete;
  WorkerEngine& operator=(const WorkerEngine&) = delete;

  void adopt(wire::Socket client);
  void stop();
  void serve();
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const StageCache& cache() const { return cache_; }
  [[nodiscard]] size_t sessions() const { return session_count_; }
  [[nodiscard]] std::string metrics();
  [[nodiscard]] uint64_t memory_limit() const { return cache_.limit(); }
  void set_memory(uint64_t limit) { cache_.set_limit(for_stages(limit)); }
  [[nodiscard]] std::vector<Digest> hosts() const;
  [[nodiscard]] uint64_t shared_bytes() const { return ranges_.bytes(); }

 private:
  /// What a limit leaves for stages: at least a byte, since 0 is none.
  [[nodiscard]] uint64_t for_stages(uint64_t limit) const {
    return limit == 0 ? 0 : std::max<uint64_t>(1, limit - std::min(limit, options_.own_memory));
  }
  /// A client that has not said who it is, or is being told why not.
  struct Stranger {
    std::unique_ptr<wire::Connection> connection;
    wire::Clock::time_point deadline;
    bool refused = false;  ///< only waits for the peer to read the refusal and close
  };

  void loop();
  int next_timeout() const;
  // worker_greeting.cpp
  void accept();
  void welcome_stranger(wire::Socket client);
  bool refuse(Stranger& stranger, ErrorKind kind, const std::string& reason);
  /// These three return false if the client is to be dropped.
  bool greet(Stranger& stranger);
  bool greet_link(const wire::Hello& hello, std::unique_ptr<wire::Connection>& connection);
  bool greet_echo(const wire::Hello& hello, std::unique_ptr<wire::Connection>& connection);
  /// False if it is to be dropped.
  static bool answer(wire::Connection& echo);
  // worker_engine.cpp
  bool listen_to(const std::shared_ptr<Session>& session);
  Status dispatch(const std::shared_ptr<Session>& session, const wire::Header& header);
  void dial(const std::shared_ptr<Session>& session, const wire::Dial& request);
  /// A connection to another worker that was greeted and let in. `pin` zero: without TLS.
  Result<std::unique_ptr<wire::Connection>> call(const std::string& where, wire::Role role,
                                                 const wire::Key& key, const Digest& pin) const;
  void test_link(const std::shared_ptr<Session>& session, const wire::TestLink& request);
  void end(const std::shared_ptr<Session>& session);
  void tick();
  void count_sessions();
  // worker_report.cpp
  /// Loads what the session asked for; by a thread of its own.
  void load(const std::shared_ptr<Session>& session);
  void count_bytes(Session& session);
  [[nodiscard]] wire::Bytes welcome() const;
  [[nodiscard]] wire::Bytes pong(const Session& session) const;
  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  const WorkerOptions options_;
  const wire::Clock::time_point started_ = wire::Clock::now();
  WorkerMetrics metrics_;
  std::atomic<uint32_t> loading_{0};
  wire::Listener listener_;
  const std::optional<weights::ModelLibrary> library_;
  const std::string address_;
  StageCache cache_;
  wire::Wake wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<size_t> session_count_{0};
  mutable std::mutex hosts_mutex_;  ///< guards hosts_
  std::vector<Digest> hosts_;
  // The IO thread's.
  std::list<Stranger> strangers_;
  /// Whoever measures the way to here.
  struct EchoPeer {
    std::unique_ptr<wire::Connection> connection;
    wire::Clock::time_point deadline;
  };
  std::list<EchoPeer> echoes_;
  std::vector<std::shared_ptr<Session>> sessions_;
  wire::Clock::time_point accept_again_{};
  std::mutex adopted_mutex_;  ///< guards adopted_
  std::vector<wire::Socket> adopted_;
  wire::Clock::time_point last_progress_{};
  // Loads and dials. After sessions_, so that they end first; they use the cache and the compute
  // thread.
  std::unique_ptr<WorkerCompute> compute_;
  Tasks tasks_;
  RangeServer ranges_;
  std::mutex stop_mutex_;  ///< guards stopped_ and joining
  std::condition_variable stopped_changed_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace tandem::ring
