// A TCP relay in front of one worker, which does to the traffic what networks do: delay, jitter,
// limited rates, silence, resets, bits that flip.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "wire/tcp.h"

namespace tandem::chaos {

/// Which of a worker's connections.
enum class Which : uint8_t {
  kAll,
  kHost,       ///< those of the process that the relay runs in, which is the host's
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
  /// No stall, no limit of rate.
  void heal();
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
    Pipe up;    ///< client to worker
    Pipe down;  ///< worker to client
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
  const wire::Address target_;
  wire::Wake wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> rate_{0};
  std::atomic<uint32_t> corrupted_{0};
  std::mutex mutex_;  ///< guards what follows
  std::mt19937_64 random_;
  std::chrono::microseconds delay_{0};
  std::chrono::microseconds jitter_{0};
  bool stall_all_ = false;
  bool stall_host_ = false;
  bool stall_neighbour_ = false;
  std::list<std::unique_ptr<Way>> ways_;
  std::thread thread_;
};

}  // namespace tandem::chaos
