// Measures the devices of a room for a plan: each runs the very stage that it would hold, on a few
// layers and inside the memory that it lends, and the ways between all of them are tried.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/stage.h"
#include "ring/host.h"
#include "ring/planner.h"
#include "weights/manifest.h"
#include "weights/source.h"
#include "wire/messages.h"

namespace tandem::ring {

struct ProbeOptions {
  std::string config_json;
  std::string origin;  ///< as RingOptions has it
  model::ModelConfig config;
  const weights::Manifest* manifest = nullptr;  ///< needed if there are workers
  weights::TensorSource* source = nullptr;
  model::StageOptions local;        ///< weight and KV bits of all; threads, isa, pool of the host
  StageLoader load;                 ///< of the host's layers; empty: model::Stage::load
  std::vector<RingWorker> workers;  ///< their layers are not read
  std::shared_ptr<const wire::Tls> tls;  ///< may be null
  wire::Dialler dialler;                 ///< of workers; empty: wire::dial_tcp
  /// Bytes that the host lends for its ends and its layers; 0: none for layers. Nothing: what its
  /// system has.
  std::optional<uint64_t> host_memory;
  uint32_t context = 0;      ///< of the room; 0: the model's
  bool measure_ends = true;  ///< load embedding and head, and time them
  /// Which devices to measure, the host (and its ends) first; empty: all. Others load a layer where
  /// a link of theirs is measured, and nothing is known of them afterwards.
  std::vector<bool> devices;
  /// Whether to measure the link between two devices, a < b; empty: all.
  std::function<bool(uint32_t a, uint32_t b)> links;
  /// Whether two workers, devices a < b, reach each other by RingWorker::relay alone; empty: as a
  /// ring links them, directly where that works.
  std::function<bool(uint32_t a, uint32_t b)> by_relay;
  /// Told of a worker (index) that makes the probe fail. From several threads. May be empty.
  std::function<void(size_t worker, const Error& why)> failed;
  /// What is being done, in a few words. May be empty.
  std::function<void(std::string_view)> progress;
  const std::atomic<bool>* cancel = nullptr;
};

struct DeviceProbe {
  std::string id;  ///< "host" or the worker's label()
  uint64_t memory = 0;
  uint64_t could_lend = 0;
  uint32_t threads = 0;
  LayerRange layers;  ///< that were measured; none if not one fits into its memory
  uint64_t weight_bytes = 0;
  uint64_t load_bytes = 0;  ///< that came from the host, in load_seconds
  double load_seconds = 0;
  /// Passes of `layers` at kProbeWidths: in turn with the other devices, as laps of an answer are,
  /// and, of workers, the wide ones while all run at once. Empty if nothing was measured.
  std::vector<wire::Measured::Width> alone;
  std::vector<wire::Measured::Width> together;
};

struct LinkProbe {
  uint32_t a = 0;  ///< index of a device; the host is 0
  uint32_t b = 0;
  wire::Spread rtt_ns;
  wire::Spread bytes_per_second;
};

struct RoomProbe {
  std::vector<DeviceProbe> devices;  ///< the host first, then workers in the order given
  std::vector<LinkProbe> links;      ///< pairs that reach each other
  double host_ms = 0;                ///< embedding and head of a lap of one token, median
  double host_token_ms = 0;          ///< embedding of one token of a prompt
};

/// Measures. Takes seconds, and longer where layers have to be sent. Errors: kPeer (names the
/// worker), kInvalid, kMemory, kCancelled, and what loading fails with.
Result<RoomProbe> probe_room(const ProbeOptions& options);

/// What the planner needs to know of a model: bytes as stages count them, work as bytes read.
PlanModel plan_model(const model::ModelConfig& config, const model::StageOptions& bits,
                     uint32_t context, const weights::TensorSource& source);

/// A plan's input from what was measured: medians, of passes of up to 4 tokens in turn, and of
/// wider ones while all run at once, as they do while a prompt goes round.
PlanInput plan_input(const ProbeOptions& options, const RoomProbe& probe);

}  // namespace tandem::ring
