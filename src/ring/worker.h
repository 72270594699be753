// The engine of `tandem worker`: a server that lends this process's memory and cores to hosts. Each
// host that connects may have one stage loaded and then run laps through it (docs/wire.md).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/stage.h"
#include "observe/event_log.h"
#include "ring/range_server.h"
#include "weights/manifest.h"
#include "weights/source.h"
#include "wire/tcp.h"
#include "wire/tls.h"

namespace tandem::ring {

/// Version of the arithmetic contract that hosts and workers must share, and the software's name in
/// the hello.
uint32_t contract_version();
std::string software_version();

/// Loads a stage, as model::Stage::load does. Tests and other backends put their own here.
using StageLoader = std::function<Result<std::unique_ptr<model::Stage>>(
    const model::ModelConfig&, const model::StageOptions&, weights::TensorSource&,
    const model::LoadProgress&)>;

/// Fills `out` from byte `offset` of a tensor on. Errors: kNotFound (not there), kPeer.
using RangeReader =
    std::function<Status(const std::string& tensor, uint64_t offset, std::span<std::byte> out)>;

/// What a stage needs that is not held here.
struct FetchRequest {
  std::string origin;  ///< as the host wrote it: wire::Load::origin, not checked; may be empty
  Digest model_hash{};
  const weights::Manifest* manifest = nullptr;
  std::string config_json;                  ///< the one that the manifest names
  std::vector<std::string> tensors;         ///< those of the stage's layers that will be read
  RangeReader host;                         ///< asks the host; empty if that is not allowed
  const std::atomic<bool>* gone = nullptr;  ///< nobody waits any more
  /// To be told of bytes fetched, of those to fetch.
  std::function<void(uint64_t done, uint64_t total)> progress;
};
/// Opens a source of a stage's tensors from elsewhere than the host: each that it gives has the
/// manifest's hash. Called by a loading thread, and the source used by it alone; what the request
/// points to outlives the source.
using TensorFetcher =
    std::function<Result<std::unique_ptr<weights::TensorSource>>(const FetchRequest&)>;

struct WorkerOptions {
  std::string listen = "127.0.0.1:0";  ///< HOST:PORT; port 0 lets the system choose
  uint64_t memory = 0;                 ///< limit of weights and KV caches in bytes; 0 is none
  /// The limit is of the whole process: so many bytes of it are the program's own, and buffers of
  /// passes count too. 0: it is not.
  uint64_t own_memory = 0;
  uint32_t threads = 1;  ///< of each stage
  std::string models;    ///< folder of models held already; empty is none
  model::Isa isa = model::Isa::kBest;
  std::shared_ptr<weights::PackedStore> cache;  ///< quantized weights on disk; null is none
  std::optional<uint64_t> experts_memory;       ///< of each stage (model::StageOptions)
  StageLoader load;                             ///< empty: model::Stage::load
  TensorFetcher fetch;          ///< asked before the host is; empty: there is only the host
  bool tensors_of_host = true;  ///< tensors that are nowhere else may come from the host
  ShareOptions share;           ///< what other devices may fetch from here; only with `tls`
  std::shared_ptr<const wire::Tls> tls;  ///< null: no encryption, whoever comes is served
  wire::Dialler dialler;  ///< makes links to the next stage's worker; empty: wire::dial_tcp
  /// Whether the device with this certificate may be a host here now; the error is told to it. From
  /// the worker's IO thread: must not wait. Empty: who proves the key may. Only with `tls`.
  std::function<Status(const wire::Fingerprint&)> admit;
  /// How long a stage that nobody uses stays loaded.
  std::chrono::milliseconds keep_idle = std::chrono::minutes(5);
  std::chrono::milliseconds hello_deadline = std::chrono::seconds(5);
  /// Told about clients and loads, one line each; from the worker's threads. May be empty.
  std::function<void(const std::string&)> log;
  observe::EventLog events;  ///< the same for programs
};

class WorkerEngine;

/// A running worker. Its members may be called from any thread.
class Worker {
 public:
  /// Listens and starts the worker's threads. Errors: kInvalid (an option), kIo, kNotFound (the
  /// address, the models folder).
  static Result<std::unique_ptr<Worker>> start(WorkerOptions options);
  /// Stops.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// HOST:PORT with the port that was chosen.
  [[nodiscard]] const std::string& address() const;
  /// Takes a stream that came another way than to the address as a client that connected, such as
  /// one through a hub's relay. It must not block. Any thread.
  void adopt(wire::Socket client);
  /// Closes all connections and waits for the threads; a pass under way is waited for.
  void stop();
  /// Returns once stop() was called.
  void serve();

  /// Bytes of weights and KV caches held, and stages loaded.
  [[nodiscard]] uint64_t memory_used() const;
  [[nodiscard]] size_t stages() const;
  /// What WorkerOptions::memory leaves for stages; 0 is no limit.
  [[nodiscard]] uint64_t memory_limit() const;
  /// Changes WorkerOptions::memory. What is in use stays until it is given back.
  void set_memory(uint64_t limit);
  /// The devices of the hosts that are connected, over TLS.
  [[nodiscard]] std::vector<wire::Fingerprint> hosts() const;
  /// Hosts connected.
  [[nodiscard]] size_t sessions() const;
  /// Bytes of tensors given to other devices (WorkerOptions::share).
  [[nodiscard]] uint64_t shared_bytes() const;
  /// All that it counts, for Prometheus.
  [[nodiscard]] std::string metrics() const;

 private:
  explicit Worker(std::unique_ptr<WorkerEngine> engine);
  std::unique_ptr<WorkerEngine> engine_;
};

/// The line that a worker process prints to standard output once it listens; LocalWorkers reads it.
std::string listening_line(const std::string& address);

}  // namespace tandem::ring
