// The engine of `tandem worker`: a server that lends this process's memory and cores to hosts. Each
// host that connects may have one stage loaded and then run laps through it (docs/wire.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/stage.h"
#include "weights/source.h"
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

struct WorkerOptions {
  std::string listen = "127.0.0.1:0";  ///< HOST:PORT; port 0 lets the system choose
  uint64_t memory = 0;                 ///< limit of weights and KV caches in bytes; 0 is none
  uint32_t threads = 1;                ///< of each stage
  std::string models;                  ///< folder of models held already; empty is none
  model::Isa isa = model::Isa::kBest;
  std::shared_ptr<weights::PackedStore> cache;  ///< quantized weights on disk; null is none
  std::optional<uint64_t> experts_memory;       ///< of each stage (model::StageOptions)
  StageLoader load;                             ///< empty: model::Stage::load
  std::shared_ptr<const wire::Tls> tls;         ///< null: no encryption, whoever comes is served
  /// Whether the device with this certificate may be a host here now; the error is told to it. From
  /// the worker's IO thread: must not wait. Empty: who proves the key may. Only with `tls`.
  std::function<Status(const wire::Fingerprint&)> admit;
  /// How long a stage that nobody uses stays loaded.
  std::chrono::milliseconds keep_idle = std::chrono::minutes(5);
  std::chrono::milliseconds hello_deadline = std::chrono::seconds(5);
  /// Told about clients and loads, one line each; from the worker's threads. May be empty.
  std::function<void(const std::string&)> log;
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
  /// Closes all connections and waits for the threads; a pass under way is waited for.
  void stop();
  /// Returns once stop() was called.
  void serve();

  /// Bytes of weights and KV caches held, and stages loaded.
  [[nodiscard]] uint64_t memory_used() const;
  [[nodiscard]] size_t stages() const;
  /// Changes WorkerOptions::memory. What is in use stays until it is given back.
  void set_memory(uint64_t limit);
  /// The devices of the hosts that are connected, over TLS.
  [[nodiscard]] std::vector<wire::Fingerprint> hosts() const;
  /// Hosts connected.
  [[nodiscard]] size_t sessions() const;

 private:
  explicit Worker(std::unique_ptr<WorkerEngine> engine);
  std::unique_ptr<WorkerEngine> engine_;
};

/// The line that a worker process prints to standard output once it listens; LocalWorkers reads it.
std::string listening_line(const std::string& address);

}  // namespace tandem::ring
