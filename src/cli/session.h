// What most commands need: a model's layers loaded here or over workers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/cache.h"
#include "cli/model_files.h"
#include "cli/model_flags.h"
#include "cli/output.h"
#include "kernels/profile.h"
#include "model/stage.h"
#include "ring/generate.h"
#include "ring/host.h"
#include "ring/local.h"
#include "weights/manifest.h"

namespace tandem::room {
class Host;
}

namespace tandem::cli {

class RoomReport;

/// Where the workers of `flags` listen, those of --local after they were started.
Result<std::vector<ring::RingWorker>> open_workers(const ModelFlags& flags,
                                                   const weights::Checkpoint& checkpoint,
                                                   std::unique_ptr<ring::LocalWorkers>& local);
/// Reads "HOST:PORT=0-3,HOST:PORT#FINGERPRINT=4-7". Error: kInvalid.
Result<std::vector<ring::RingWorker>> parse_spares(const std::string& text, uint32_t layers);
/// TLS with the room's key and this device's certificate from these files; null without a key.
/// Errors: kIo, kInvalid.
Result<std::shared_ptr<const wire::Tls>> open_tls(const std::string& key,
                                                  const std::string& identity);

/// This process's own stages as `flags` ask for them, with a pool of their threads.
Result<model::StageOptions> own_stages(const ModelFlags& flags,
                                       std::shared_ptr<weights::PackedCache> cache);
/// The hashes of all tensors; read once, and then known. Progress goes to standard error.
Result<std::unique_ptr<weights::Manifest>> identify(const ModelFlags& flags,
                                                    weights::Checkpoint& checkpoint);

/// A model loaded and ready.
class Session {
 public:
  struct Options {
    uint32_t context = 0;                       ///< positions that the caller needs
    uint32_t batch = 0;                         ///< tokens in one frame; 0: chosen by the ring
    std::shared_ptr<kernels::Profile> profile;  ///< of this process's stages; null is none
    bool identify = false;             ///< the caller needs identity(): the weights are hashed once
    std::shared_ptr<room::Host> room;  ///< its devices hold layers; or null
  };
  /// Starts local workers, opens the ring, loads the ends. Progress and the table of who holds what
  /// go to standard error. The context is cut to the model's.
  static Result<Session> open(const ModelFlags& flags, Model model, const Options& options);

  /// Writes what the cache of quantized weights still lacks, so that the next start is fast.
  ~Session() { finish_cache(); }
  Session(Session&&) = default;
  Session& operator=(Session&&) = delete;
  /// The same at once, for a command that then measures.
  void finish_cache() { cli::finish_cache(cache_.get(), quiet_); }

  [[nodiscard]] const model::ModelConfig& config() const { return model_.config; }
  [[nodiscard]] const Model& model() const { return model_; }
  /// Weights, threads and instruction set of this process's own stages.
  [[nodiscard]] const model::StageOptions& stage_options() const { return stage_options_; }
  [[nodiscard]] ring::Ring& ring() { return *ring_; }
  /// What the room is told; null without one.
  [[nodiscard]] RoomReport* room() { return room_.get(); }
  [[nodiscard]] model::Ends& ends() { return *ends_; }
  [[nodiscard]] uint32_t context() const { return context_; }
  /// Tells the event log of an answer: how many tokens, how fast, how it ended.
  void tell(const ring::Answer& answer) const;
  [[nodiscard]] uint32_t batch() const { return batch_; }
  /// Of all layers' state. Needs Options::identify.
  [[nodiscard]] model::StateIdentity identity() const;
  /// Loads what `file` holds into a conversation of this session and returns its note; nothing, and
  /// an empty note, if there is no such file. Needs Options::identify.
  Result<std::string> resume(const std::string& file, ring::Conversation& conversation);
  /// Frames under way at once.
  [[nodiscard]] uint32_t in_flight() const { return in_flight_; }
  [[nodiscard]] ring::Conversation conversation(const text::Tokenizer* tokenizer) {
    return {*ring_, *ends_, model_.config.vocab, context_, tokenizer, &cancel_flag()};
  }

 private:
  Session() = default;
  void show_table();

  Model model_;
  model::StageOptions stage_options_;
  std::unique_ptr<weights::Manifest> manifest_;
  std::shared_ptr<weights::PackedCache> cache_;
  bool quiet_ = false;
  std::unique_ptr<ring::LocalWorkers> local_;
  std::shared_ptr<ring::HostMetrics> metrics_;
  std::shared_ptr<observe::MetricsServer> metrics_server_;
  observe::EventLog events_;
  std::shared_ptr<RoomReport> room_;  // after the ring, which tells it of progress
  std::unique_ptr<ring::Ring> ring_;
  std::unique_ptr<model::Ends> ends_;
  uint32_t context_ = 0;
  uint32_t batch_ = 0;
  uint32_t in_flight_ = 0;
  std::vector<std::string> local_names_;
};

}  // namespace tandem::cli
