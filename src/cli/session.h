// What most commands need: a model's folder opened, and its layers loaded here or over workers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/cache.h"
#include "cli/flags.h"
#include "cli/observe.h"
#include "cli/output.h"
#include "kernels/profile.h"
#include "model/stage.h"
#include "ring/generate.h"
#include "ring/host.h"
#include "ring/local.h"
#include "text/chat.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/manifest.h"

namespace tandem::room {
class Host;
}

namespace tandem::cli {

class RoomReport;

/// What --isa takes.
std::vector<std::string> isa_names();

/// What --experts-memory takes: nothing, or a size.
Result<std::optional<uint64_t>> parse_experts_memory(const std::string& text);
inline constexpr const char* kExpertsMemoryHelp =
    "experts held in memory, the others on disk (default: all of them)";

/// Which model, and where its layers lie.
struct ModelFlags {
  std::string model;
  std::string workers;
  std::string room;         ///< link or code, @FILE or -; empty: no room
  std::string room_memory;  ///< that this device lends to a room's answer; empty: what it has
  std::string key;          ///< file of the room's key, "-" for standard input, or empty
  std::string identity;     ///< file of this device's certificate, or empty: a new one each time
  std::string split;
  std::string plan = "even";  ///< or "auto": what was measured decides
  uint32_t local = 0;         ///< worker processes to start; 0 is none
  std::string weights = "8";
  std::string kv = "16";
  uint32_t threads = 0;  ///< 0: as many as there are cores
  std::string isa = "best";
  uint32_t context = 0;        ///< 0: what the command needs
  std::string experts_memory;  ///< a size, or empty: all experts are in memory
  std::string cache;           ///< folder of quantized weights, "off", or empty for the usual one
  bool steady = false;         ///< weights come from the cache as they will lie in the long run
  std::string spares;          ///< workers with the layers that they are ready to take over
  bool recover = false;        ///< the command lets an answer go on without a worker that leaves
  bool no_recovery = false;    ///< its user does not want that
  bool no_spares = false;      ///< nor devices of a room that stand by
  std::string objective;       ///< of a room's plan; empty: as the room was made
  bool quiet = false;
  bool table = true;     ///< show who holds what, unless quiet
  ObserveFlags observe;  ///< what run and chat are asked to show of themselves

  void add_model(Flags& flags);  ///< -m
  void add_all(Flags& flags);    ///< -m and all others but
  void add_room(Flags& flags);   ///< --room, and --memory for it; and
  /// --spares and --no-recovery, for commands that answer.
  void add_recovery(Flags& flags);
  /// Threads of this process.
  [[nodiscard]] uint32_t host_threads() const;
  /// Threads of each process that --local starts.
  [[nodiscard]] uint32_t local_threads() const;
  /// kInvalid if the flags contradict each other.
  [[nodiscard]] Status check() const;
  /// kInvalid if a --state file is given with flags that it does not go together with.
  [[nodiscard]] Status check_state(const std::string& state) const;
};

/// Cores that this process may run on.
uint32_t cores();

/// The folder or GGUF file of -m: as given, or a name beside the default model; without -m
/// $TANDEM_MODEL, or models/storyteller beside the executable or in a folder above it. Error:
/// kNotFound.
Result<std::filesystem::path> find_model(const std::string& given);

/// What workers that fetch the model themselves are told that it is called: as it was pulled, else
/// its folder's name, as a hub may serve it.
std::string origin_of(const weights::Checkpoint& checkpoint);

/// A model's folder, opened. No weights are read yet.
struct Model {
  std::unique_ptr<weights::Checkpoint> checkpoint;
  model::ModelConfig config;

  static Result<Model> open(const std::string& given);
};

/// The tokenizer of a folder or GGUF file.
Result<text::Tokenizer> open_tokenizer(const std::filesystem::path& path);

/// The model's text side.
struct Text {
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat;
  text::GenerationConfig generation;

  static Result<Text> open(const weights::Checkpoint& checkpoint);
  static Result<Text> open(const std::filesystem::path& folder);
  /// eos ids without those outside [0, vocab).
  [[nodiscard]] std::vector<uint32_t> end_ids(uint32_t vocab) const;
};

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
/// --key and --identity.
void add_key_flags(Flags& flags, std::string& key, std::string& identity);

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
