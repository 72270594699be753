// One lap: hidden states go through all stations of the ring, in batches with several in flight, so
// that every stage has work. Runs on the caller's thread, which is also the one that computes the
// host's own layers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/stage.h"
#include "ring/expectation.h"
#include "ring/host_peer.h"
#include "ring/monitor.h"
#include "ring/recent.h"
#include "ring/stage_cache.h"
#include "wire/tcp.h"

namespace tandem::ring {

/// A stop of the ring as the host sees it: a stage of its own, or a run of workers that hand hidden
/// states to each other, of which it sees the first's link in and the last's link out.
struct Station {
  LayerRange layers;
  // The host's own.
  std::unique_ptr<model::Stage> stage;
  std::unique_ptr<model::Sequence> sequence;
  PassTotals totals;
  PassMeans pass_means;
  // Workers.
  std::vector<Peer*> peers;
  std::unique_ptr<wire::Connection> in;
  std::unique_ptr<wire::Connection> out;
  Recent hop_ms;
  Expectation expectation;
  // Where frames are read to. Here and not with a lap: one that is cancelled may leave half a
  // frame.
  model::HiddenStates incoming;
  std::vector<std::byte> late;  ///< frames of earlier laps end here

  [[nodiscard]] bool local() const { return peers.empty(); }
};

struct LapOptions {
  uint64_t number = 0;  ///< greater than that of any lap before
  uint32_t position = 0;
  uint32_t want = 0;
  wire::Control control = wire::Control::kNone;  ///< before the first token, on workers
  uint32_t argument = 0;
  uint32_t batch = 32;  ///< tokens in one frame
  uint32_t in_flight = 6;
  uint32_t width = 0;
  const std::atomic<bool>* cancel = nullptr;
  std::function<void()> on_events;  ///< the monitor has some
};

class Lap {
 public:
  Lap(std::span<Station* const> stations, const LapOptions& options, Monitor& monitor,
      const wire::Wake& wake);

  /// Sends `hidden` round; gives the last `want` rows of what comes back. Without tokens it carries
  /// only the control. Errors: kCancelled, kPeer, and those of the host's stages; after any of them
  /// frames may still be under way, which later laps know by their number.
  Result<model::HiddenStates> run(model::HiddenStates hidden);

 private:
  struct Batch {
    uint32_t first = 0;  ///< token, within the lap
    uint32_t tokens = 0;
    uint32_t want = 0;  ///< rows of it that the lap returns; always its last ones
    model::HiddenStates hidden;
    bool placed = false;  ///< `hidden` is filled; before, its rows are in the lap's input
    wire::Clock::time_point sent;
  };
  struct Stop {
    Station* station = nullptr;
    std::deque<size_t> waiting;  ///< batches to start here
    std::deque<size_t> flying;   ///< batches that the workers have
  };
  Status advance(bool& moved);
  Status compute(Stop& stop, size_t next);
  Status send(Stop& stop, bool last);
  Status receive(size_t at);
  Status wait();
  /// Looks for the frame that a lap of one batch waits for, without sleeping, until the
  /// window has passed.
  Status watch(size_t stop, wire::Clock::time_point until);
  void arrive(size_t batch, size_t next);
  [[nodiscard]] uint32_t rows_back(const Batch& batch, size_t stop) const;
  [[nodiscard]] bool cancelled() const {
    return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  }

  const LapOptions options_;
  Monitor& monitor_;
  const wire::Wake& wake_;
  std::vector<Stop> stops_;
  std::vector<Batch> batches_;
  size_t started_ = 0;
  size_t finished_ = 0;
  model::HiddenStates input_;
  model::HiddenStates output_;
};

}  // namespace tandem::ring
