// The host's side of a ring: a model's layers, spread over workers and the host itself, as one
// function from hidden states to hidden states.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/hidden.h"
#include "model/stage.h"
#include "observe/event_log.h"
#include "ring/event.h"
#include "ring/host_metrics.h"
#include "ring/plan.h"
#include "ring/worker.h"
#include "weights/manifest.h"
#include "weights/source.h"
#include "wire/tcp.h"

namespace tandem::ring {

struct RingWorker {
  std::string address;  ///< HOST:PORT
  LayerRange layers;
  /// Fingerprint that the device there must have; nothing: any that proves the room's key.
  std::optional<wire::Fingerprint> pin = std::nullopt;
  std::string name = {};  ///< what reports and messages call it; empty: by its address
  /// By what the worker before it in the ring reaches it; empty: by its address.
  std::string link_address = {};
  /// Another way to it, such as through a hub's relay: taken where the first one does not answer,
  /// or breaks again and again. The dialler of whoever takes it has to know its form. Empty: none.
  std::string relay = {};

  [[nodiscard]] const std::string& way_for_workers() const {
    return link_address.empty() ? address : link_address;
  }
  [[nodiscard]] const std::string& label() const { return name.empty() ? address : name; }
};

/// What a device does while the ring opens.
struct LoadEvent {
  enum class Phase { kConnecting, kWaiting, kSearching, kLoading, kReady };
  std::string peer;  ///< the worker's label(), or "host"
  LayerRange layers;
  Phase phase = Phase::kConnecting;
  uint64_t done = 0;  ///< bytes, of kSearching and kLoading
  uint64_t total = 0;
  bool spare = false;  ///< it is to stand by with these layers
};

struct RingOptions {
  std::string config_json;
  model::ModelConfig config;
  /// The model's content; needed if there are workers. Only read by Ring::open and recovery.
  const weights::Manifest* manifest = nullptr;
  /// Where the host's layers are read from, and those of workers that don't have the model. Must
  /// outlive the ring.
  weights::TensorSource* source = nullptr;
  /// Where else the model is, for workers that may fetch it themselves: wire::Load::origin.
  std::string origin;
  /// In the order of their layers. Layers that none of them has are the host's.
  std::vector<RingWorker> workers;
  /// After a failure reset() goes on without the worker that failed: a spare takes its layers, or
  /// it comes back within seconds, or `replan` says who has which layers now; without `replan`, its
  /// layers go to another worker, or to the host. False: reset() needs all workers back.
  bool survive = false;
  /// With `survive`: workers that hold a loaded copy of the layers that they are given with, and
  /// take over from whoever has exactly these. The same worker may be in both lists.
  std::vector<RingWorker> spares;
  /// With `survive`, in place of `spares`: who is to stand by with which layers while these workers
  /// hold them. Asked once the ring answers, at first and after each repair, on the thread that
  /// calls the ring. They load beside the answers; who can't is told as lost, and is no spare. Must
  /// return at once. May be empty.
  std::function<std::vector<RingWorker>(const std::vector<RingWorker>& workers)> choose_spares;
  /// With `survive`: which worker has which layers from now on, as `workers`; those that keep their
  /// layers keep their stages loaded, and those of `choose_spares` give theirs up first. A worker
  /// that fails while the ring opens is lost like any other. `lost` are addresses of workers that
  /// are gone (all since the failure), or of one that has become too slow. Called on the thread
  /// that calls reset(), which fails with the error that this returns. May be empty.
  std::function<Result<std::vector<RingWorker>>(const std::vector<std::string>& lost)> replan;
  /// Weight bits of all stages; threads and isa of the host's own. The layer range is not read.
  model::StageOptions local;
  StageLoader load;        ///< of the host's own stages; empty: model::Stage::load
  uint32_t context = 0;    ///< positions to reserve KV caches for; 0 is the model's context
  uint32_t batch = 0;      ///< tokens in one frame, 1 to 4,096; 0: frame_tokens()
  uint32_t in_flight = 6;  ///< frames under way at once, 1 to 256
  /// Null: no encryption, and the workers must have none either.
  std::shared_ptr<const wire::Tls> tls;
  /// Makes all connections to workers; empty: wire::dial_tcp.
  wire::Dialler dialler;
  /// Called from several threads, by one at a time. May be empty.
  std::function<void(const LoadEvent&)> progress;
  Listener listener;                     ///< told what happens while the ring opens; may be empty
  std::shared_ptr<HostMetrics> metrics;  ///< counted there; may be null
  observe::EventLog events;              ///< told what happens
  /// Set by another thread or a signal handler to end a forward() or open() with kCancelled.
  const std::atomic<bool>* cancel = nullptr;
};

/// One stage of the ring, in the order of the layers.
struct StageReport {
  std::string peer;  ///< the worker's label(), or "host"
  LayerRange layers;
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;    ///< reserved on a worker; held by the host
  uint64_t load_bytes = 0;  ///< tensor bytes that the host sent it; 0 if it had them
  double ms_per_pass = 0;   ///< of one token, mean since the last stages() or the one before
  /// Median time of one hop towards this stage beyond the stages' compute, over laps of one frame;
  /// measured per run of workers, and the same for each of its hops. 0 for the host.
  double hop_ms = 0;
  uint64_t bytes_received = 0;  ///< on its links, since the links were made
  uint64_t bytes_sent = 0;
  bool relayed = false;  ///< its output goes through the host, since it can't reach the next stage
  /// The host, or this stage's worker on its way to the next one, takes RingWorker::relay.
  bool host_by_relay = false;
  bool next_by_relay = false;
};

class RingState;

/// Not thread-safe. Threads of its own watch the workers between calls.
///
/// After a failure (any error of forward(), save(), restore(), drop() but kInvalid and kCancelled)
/// the caches of the stages no longer agree, and every call fails with the same error until reset()
/// has put the ring together again.
class Ring {
 public:
  /// Connects to all workers at once, has them load their layers while the host loads its own,
  /// links the stages and proves the ring by a pass through it. Without workers there are no
  /// sockets. Errors name the worker: kPeer (unreachable, silent, refused), kInvalid (options),
  /// kCancelled, and what loading fails with.
  static Result<std::unique_ptr<Ring>> open(RingOptions options);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// Runs all layers over the tokens of `hidden`, the first of which is at `position`, which must
  /// be length(). Returns the hidden states of the last `want` tokens (0 to hidden.tokens()).
  /// Errors: kInvalid (arguments; nothing has changed), kCancelled (the ring is as before the
  /// call; where layers are recurrent and several frames were under way it may be shorter, back at
  /// a checkpoint), kPeer (names the worker and the cause), or a failure of the host's own stage.
  Result<model::HiddenStates> forward(model::HiddenStates hidden, uint32_t position, uint32_t want);
  /// Forgets the positions from `length` on; costs nothing until the next forward().
  /// Error: kInvalid if length() is less, or if layers are recurrent and `length` is neither 0 nor
  /// one of the last frame's positions (go_back).
  Status rollback(uint32_t length);
  /// Forgets positions from `length` on, and as few before as must be: where layers are recurrent,
  /// back to the nearest position that the last frame or a checkpoint leads to. Returns the new
  /// length. Errors as rollback() and restore().
  Result<uint32_t> go_back(uint32_t length);
  /// Forgets all positions and checkpoints. After a failure: reconnects to the workers that failed,
  /// or has others take their layers (RingOptions::survive), links and proves the ring anew. Errors
  /// as open(), and those of RingOptions::replan; with `survive` a minute after it began at most,
  /// loading aside.
  Status reset();
  /// RingOptions::survive: whoever knows what the ring held can reset() it and go on.
  [[nodiscard]] bool survives() const;
  /// A worker has become so slow that a reset() would ask RingOptions::replan.
  [[nodiscard]] bool wants_replan() const;
  /// Whom to tell what happens, from within calls; empty: nobody. What happened before is told
  /// first.
  void listen(Listener listener);
  /// Positions held.
  [[nodiscard]] uint32_t length() const;

  /// Remembers the present length as checkpoint `slot`, goes back to it, forgets it. A checkpoint
  /// is lost once the ring is rolled back to before it. At most model::checkpoint_limit of them.
  /// Errors: kInvalid (no such checkpoint, too many), and those of forward().
  Status save(uint32_t slot);
  Status restore(uint32_t slot);
  Status drop(uint32_t slot);

  /// Some layers are recurrent: rollback() reaches few positions, and checkpoints are worth having.
  [[nodiscard]] bool recurrent() const;
  /// Saves a checkpoint of the present length for go_back() to find, in place of the one that is
  /// missed least if there are as many as may be (model::checkpoint_limit). Does nothing where
  /// layers are all attention, or at a length that has one. Errors as save().
  Status keep();
  /// Stages one after the other, those of the host and of the workers.
  [[nodiscard]] size_t stage_count() const;

  /// What the layers hold of the conversation, as bytes that read_state() of a ring over the same
  /// model takes, in another process too. Error: kUnsupported if workers hold layers.
  [[nodiscard]] Result<std::vector<std::byte>> write_state() const;
  /// Takes the place of what was held, checkpoints included. On an error nothing is held. Errors:
  /// kUnsupported likewise, kInvalid (not such bytes), kMemory.
  Status read_state(std::span<const std::byte> bytes);

  /// Asks the workers for their counters. A worker that does not answer within a second is reported
  /// with the last ones known.
  [[nodiscard]] std::vector<StageReport> stages();

 private:
  explicit Ring(std::unique_ptr<RingState> state);
  std::unique_ptr<RingState> state_;
};

}  // namespace tandem::ring
