// A TCP relay in front of one worker, which does to the traffic what networks do: delay, jitter,
// limited rates, silence, resets, bits that flip.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "wire/tcp.h"

namespace tandem::chaos {

/// Which of a worker's connections.
enum class Which : uint8_t {
  kAll,
  kHost,       ///< those of the host: this process, or the one that host() named
  kNeighbour,  ///< links from other workers
};

/// Thread-safe.
class Relay {
 public:
  /// Listens on `listen` (port 0: any) and passes on to `target`. Ends the test program if it can't
  /// listen.
  Relay(const wire::Address& listen, wire::Address target, uint64_t seed);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] std::string address() const { return listener_.address().text(); }

  /// One way; each piece of data by up to `jitter` more, in order.
  void delay(std::chrono::microseconds fixed, std::chrono::microseconds jitter);
  /// Bytes a second in each direction of each connection; 0: no limit.
  void rate(uint64_t bytes_per_second) { rate_ = bytes_per_second; }
  /// Nothing passes until heal(), and nobody is told; new connections get no answer.
  void stall(Which which);
  /// Ends the connections that there are with a RST to both sides.
  void reset(Which which);
  /// Flips a bit of what next passes on one of the connections. False: there is none.
  bool corrupt(Which which);
  /// The same for the connections of one process, from or to it; of those that know() named.
  void stall(pid_t process);
  /// No stall, no limit of rate.
  void heal();
  /// Where to pass on to from now on.
  void target(const wire::Address& target);
  /// Processes whose connections are told apart.
  void know(pid_t process);
  /// The host is that process, not this one.
  void host(pid_t process);
  /// Bits flipped so far.
  [[nodiscard]] uint32_t corrupted() const { return corrupted_; }

 private:
  struct Chunk {
    wire::Clock::time_point due;
    std::vector<std::byte> bytes;
    size_t sent = 0;
  };
  /// One direction.
  struct Pipe {
    std::deque<Chunk> chunks;
    size_t waiting = 0;  ///< bytes in `chunks`
    wire::Clock::time_point last_due;
    bool ended = false;  ///< the reader's side was closed
    bool closed = false;
    bool full = false;  ///< the writer's socket takes nothing at the moment
  };
  struct Way {
    wire::Socket client;
    wire::Socket worker;
    Which kind = Which::kHost;
    pid_t owner = 0;  ///< process at the client's end, if it is known
    Pipe up;          ///< client to worker
    Pipe down;        ///< worker to client
    bool flip = false;
    bool dead = false;
  };
  void loop();
  void accept();
  bool stalled(const Way& way) const;
  bool matches(const Way& way, Which which) const {
    return which == Which::kAll || way.kind == which;
  }
  void read(Way& way, Pipe& pipe, int from);
  void write(Way& way, Pipe& pipe, int to);
  static void abort(Way& way);

  wire::Listener listener_;
  wire::Wake wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> rate_{0};
  std::atomic<uint32_t> corrupted_{0};
  std::mutex mutex_;  ///< guards what follows
  wire::Address target_;
  std::mt19937_64 random_;
  pid_t host_ = 0;  ///< 0: this process
  std::set<pid_t> known_;
  std::set<pid_t> stalled_;
  std::chrono::microseconds delay_{0};
  std::chrono::microseconds jitter_{0};
  bool stall_all_ = false;
  bool stall_host_ = false;
  bool stall_neighbour_ = false;
  std::list<std::unique_ptr<Way>> ways_;
  std::thread thread_;
};

}  // namespace tandem::chaos
