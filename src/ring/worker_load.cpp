#include "ring/worker_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "base/hash.h"
#include "ring/pass_memory.h"
#include "ring/plan.h"
#include "weights/checkpoint.h"
#include "weights/manifest.h"
#include "weights/printable.h"

namespace tandem::ring {
namespace {

constexpr auto kChunkSilence = std::chrono::seconds(30);

/// Tensors from the host at the other end of the session's connection.
class StreamSource final : public weights::ManifestSource {
 public:
  StreamSource(Session& session, const weights::Manifest& manifest)
      : ManifestSource(manifest), session_(session) {}

  Result<weights::TensorData> read(std::string_view tensor) override {
    const std::lock_guard one_at_a_time(mutex_);
    const auto* entry = manifest().find(tensor);
    if (entry == nullptr) {
      return Error{ErrorKind::kNotFound, "the manifest has no tensor " + std::string(tensor)};
    }
    const uint64_t size = entry->info.bytes();
    TANDEM_ASSIGN(const auto buffer, receive(tensor, size, wire::Type::kNeedTensor,
                                             wire::Bytes(std::as_bytes(std::span(tensor)).begin(),
                                                         std::as_bytes(std::span(tensor)).end())));
    weights::TensorData data{entry->info, {buffer.get(), size}, buffer};
    TANDEM_TRY(weights::verify(manifest(), data));
    return data;
  }

  /// Bytes of a tensor from `offset` on, not checked.
  Status range(const std::string& tensor, uint64_t offset, std::span<std::byte> out) {
    const std::lock_guard one_at_a_time(mutex_);
    while (!out.empty()) {
      const auto part = out.first(std::min<size_t>(out.size(), wire::kMaxRangeBytes));
      const wire::NeedRange request{session_.request.model_hash, offset,
                                    static_cast<uint32_t>(part.size()), tensor};
      TANDEM_ASSIGN(const auto buffer,
                    receive(tensor, part.size(), wire::Type::kNeedRange, request.encode()));
      std::copy_n(buffer.get(), part.size(), part.begin());
      offset += part.size();
      out = out.subspan(part.size());
    }
    return {};
  }

 private:
  /// Asks the host and waits for so many bytes.
  Result<std::shared_ptr<std::byte[]>> receive(std::string_view tensor, uint64_t size,
                                               wire::Type type, const wire::Bytes& request) {
    TensorInbox& inbox = session_.inbox;
    std::unique_lock lock(inbox.mutex);
    if (!inbox.failure.ok()) return inbox.failure.error();
    inbox.buffer = std::make_shared_for_overwrite<std::byte[]>(size);
    inbox.size = size;
    inbox.received = 0;
    session_.tell(type, request);
    uint64_t seen = 0;
    auto deadline = std::chrono::steady_clock::now() + kChunkSilence;
    while (inbox.received < size) {
      inbox.changed.wait_until(lock, deadline);
      if (!inbox.failure.ok()) return inbox.failure.error();
      if (inbox.received != seen) {
        seen = inbox.received;
        deadline = std::chrono::steady_clock::now() + kChunkSilence;
      } else if (std::chrono::steady_clock::now() >= deadline) {
        // The buffer stays with the inbox: the IO thread may be writing to it.
        inbox.failure =
            Error{ErrorKind::kPeer, "the host stopped sending tensor " + std::string(tensor)};
        return inbox.failure.error();
      }
    }
    std::shared_ptr<std::byte[]> bytes = std::move(inbox.buffer);
    inbox.buffer.reset();
    inbox.size = inbox.received = 0;
    session_.streamed += size;
    return bytes;
  }

  std::mutex mutex_;
  Session& session_;
};

/// Tensors from the one source, and from the other what that does not give.
class EitherSource final : public weights::TensorSource {
 public:
  /// `second` may be null.
  EitherSource(std::unique_ptr<weights::TensorSource> first, weights::TensorSource* second,
               std::function<void(const std::string&)> log)
      : first_(std::move(first)), second_(second), log_(std::move(log)) {}

  const weights::TensorInfo* find(std::string_view tensor) const override {
    return first_->find(tensor);
  }
  weights::TensorIdentity identity(std::string_view tensor) const override {
    return first_->identity(tensor);
  }
  Result<weights::TensorData> read(std::string_view tensor) override {
    if (!failed_) {
      auto data = first_->read(tensor);
      if (data.ok() || data.error().kind == ErrorKind::kCancelled || second_ == nullptr) {
        return data;
      }
      // A source that can't be reached is not worth a wait for each tensor.
      if (data.error().kind == ErrorKind::kPeer) failed_ = true;
      if (log_) log_(data.error().message + "; it is taken from the host");
    }
    return second_->read(tensor);
  }

 private:
  std::unique_ptr<weights::TensorSource> first_;
  weights::TensorSource* second_;
  std::function<void(const std::string&)> log_;
  std::atomic<bool> failed_{false};
};

/// Opens the source that the worker may fetch from itself; null if there is none, or if the host
/// has to do.
Result<std::unique_ptr<weights::TensorSource>> open_fetched(Session& session,
                                                            const WorkerOptions& options,
                                                            const weights::Manifest& manifest,
                                                            const model::ModelConfig& config,
                                                            StreamSource& host) {
  const wire::Load& load = session.request;
  if (!options.fetch) {
    if (options.tensors_of_host) return std::unique_ptr<weights::TensorSource>();
    return Error{ErrorKind::kNotFound,
                 "this worker does not take tensors from hosts, and has no other source of them"};
  }
  FetchRequest request;
  request.origin = load.origin;
  request.model_hash = load.model_hash;
  request.manifest = &manifest;
  request.config_json = load.config_json;
  request.gone = &session.gone;
  if (options.tensors_of_host) {
    request.host = [&host](const std::string& tensor, uint64_t offset, std::span<std::byte> out) {
      return host.range(tensor, offset, out);
    };
  }
  request.progress = [&session](uint64_t done, uint64_t total) {
    session.phase = static_cast<uint8_t>(wire::LoadPhase::kLoading);
    session.done = done;
    session.total = total;
  };
  request.tensors = model::tensors_to_read(config, load.first_layer, load.last_layer,
                                           static_cast<model::WeightBits>(load.weight_bits), host,
                                           options.cache.get());
  auto fetched = options.fetch(request);
  if (fetched.ok()) return fetched;
  if (!options.tensors_of_host || fetched.error().kind == ErrorKind::kCancelled) {
    return fetched.error();
  }
  if (options.log) options.log(fetched.error().message + "; tensors are taken from the host");
  return std::unique_ptr<weights::TensorSource>();
}

/// Checks that the manifest has every tensor of the layers in the shape that the config implies;
/// gives the bytes of the largest.
Result<uint64_t> check_tensors(const wire::Load& load, const model::ModelConfig& config,
                               const weights::Manifest& manifest) {
  uint64_t largest = 0;
  for (const auto& expected : model::layer_tensors(config, load.first_layer, load.last_layer)) {
    const auto* entry = manifest.find(expected.name);
    if (entry == nullptr) {
      return invalid("the manifest has no tensor " + expected.name + ", which the config implies");
    }
    if (entry->info.shape != expected.shape) {
      return invalid("tensor " + expected.name + " has shape " +
                     weights::shape_text(entry->info.shape) + ", the config implies " +
                     weights::shape_text(expected.shape));
    }
    largest = std::max(largest, entry->info.bytes());
  }
  return largest;
}

/// What `run` gives, or an error if the system has less memory than the worker was told to lend.
template <typename Run>
auto within_memory(const std::string& what, Run&& run) -> decltype(run()) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::kMemory, "the system has too little memory for " + what};
  }
}

Result<wire::Ready> load_stage(Session& session, StageCache& cache, const WorkerOptions& options,
                               const weights::ModelLibrary* library) {
  const wire::Load& load = session.request;
  if (sha256(load.manifest) != load.model_hash) {
    return invalid("the manifest's hash is " + hex(sha256(load.manifest)) +
                   ", not the model hash asked for, " + hex(load.model_hash));
  }
  TANDEM_ASSIGN(const weights::Manifest manifest, weights::Manifest::parse(load.manifest));
  if (sha256(load.config_json) != manifest.config) {
    return invalid("config.json is not the one that the manifest names");
  }
  TANDEM_ASSIGN(session.config, model::parse_config(load.config_json));
  model::resolve_prefix(session.config,
                        [&](std::string_view tensor) { return manifest.find(tensor) != nullptr; });
  const model::ModelConfig& config = session.config;
  if (load.first_layer >= load.last_layer || load.last_layer > config.layers) {
    return invalid("asked for layers [" + std::to_string(load.first_layer) + ", " +
                   std::to_string(load.last_layer) + "), the model has " +
                   std::to_string(config.layers));
  }
  if (load.context < 1 || load.context > config.context) {
    return invalid("asked for a context of " + std::to_string(load.context) + " positions, the " +
                   "model has " + std::to_string(config.context));
  }
  TANDEM_ASSIGN(const uint64_t largest, check_tensors(load, config, manifest));

  model::StageOptions stage_options;
  stage_options.first_layer = load.first_layer;
  stage_options.last_layer = load.last_layer;
  stage_options.weights = static_cast<model::WeightBits>(load.weight_bits);
  stage_options.kv = static_cast<model::KvBits>(load.kv_bits);
  stage_options.threads = options.threads;
  stage_options.isa = options.isa;
  stage_options.cache = options.cache;
  stage_options.experts_memory = options.experts_memory;
  const std::string layers = "layers " + text({load.first_layer, load.last_layer});
  const StageIdentity identity{load.model_hash, load.first_layer, load.last_layer, load.weight_bits,
                               load.kv_bits};
  auto from = wire::LoadedFrom::kMemory;

  auto report = [&](wire::LoadPhase phase, uint64_t done, uint64_t total) {
    session.phase = static_cast<uint8_t>(phase);
    session.done = done;
    session.total = total;
    return !session.gone;
  };
  auto loader = [&]() -> Result<std::unique_ptr<model::Stage>> {
    const StageLoader& load_function = options.load ? options.load : &model::Stage::load;
    const auto progress = [&](uint64_t done, uint64_t total) {
      return report(wire::LoadPhase::kLoading, done, total);
    };
    if (library != nullptr) {
      auto checkpoint =
          library->find(manifest, options.threads, [&](uint64_t done, uint64_t total) {
            return report(wire::LoadPhase::kSearching, done, total);
          });
      if (checkpoint.ok()) {
        from = wire::LoadedFrom::kLibrary;
        return load_function(config, stage_options, **checkpoint, progress);
      }
      if (checkpoint.error().kind == ErrorKind::kCancelled) return checkpoint.error();
    }
    StreamSource source(session, manifest);
    TANDEM_ASSIGN(auto fetched, open_fetched(session, options, manifest, config, source));
    if (fetched == nullptr) {
      from = wire::LoadedFrom::kHost;
      return load_function(config, stage_options, source, progress);
    }
    from = wire::LoadedFrom::kFetched;
    EitherSource either(std::move(fetched), options.tensors_of_host ? &source : nullptr,
                        options.log);
    return load_function(config, stage_options, either, progress);
  };
  const auto checked = [&] { return within_memory(layers, loader); };
  TANDEM_ASSIGN(session.lease,
                cache.acquire(identity, model::stage_bytes(config, stage_options), largest, layers,
                              checked, [&] { return report(wire::LoadPhase::kWaiting, 0, 0); }));
  const uint64_t kv = model::state_bytes(config, load.first_layer, load.last_layer, load.context,
                                         stage_options.kv) *
                      load.sequences;
  const uint64_t buffers = options.own_memory == 0 ? 0 : pass_bytes(config);
  TANDEM_ASSIGN(session.kv,
                cache.reserve(kv + buffers, "a KV cache of " + std::to_string(load.context) +
                                                " positions for " + layers));
  return wire::Ready{session.lease.stage->stage->bytes(), kv, session.streamed, from};
}

}  // namespace

void load_session(Session& session, StageCache& cache, const WorkerOptions& options,
                  const weights::ModelLibrary* library) {
  const auto ready = within_memory("the layers asked for",
                                   [&] { return load_stage(session, cache, options, library); });
  session.request.manifest = {};
  session.request.config_json = {};
  if (session.gone) {
    // Nobody waits for an answer. The memory goes back now, not when the last reference does.
    session.kv = {};
    session.lease = {};
    return;
  }
  if (options.log) {
    options.log(session.peer + ": layers " +
                text({session.request.first_layer, session.request.last_layer}) +
                (ready.ok() ? " ready" : ": " + ready.error().message));
  }
  if (ready.ok()) {
    session.ready = true;
    session.loading = false;
    session.tell(wire::Type::kReady, ready->encode());
  } else {
    session.lease = {};
    session.loading = false;
    session.refuse(ready.error());
  }
}

Result<wire::Connection::Place> place_chunk(TensorInbox& inbox, uint32_t length) {
  const std::lock_guard lock(inbox.mutex);
  if (inbox.buffer == nullptr || length == 0 || length > inbox.size - inbox.received) {
    return invalid("a tensor chunk of " + std::to_string(length) + " bytes that nobody asked for");
  }
  return wire::Connection::Place{std::span(inbox.buffer.get() + inbox.received, length), {}};
}

void chunk_arrived(TensorInbox& inbox, uint32_t length) {
  const std::lock_guard lock(inbox.mutex);
  inbox.received += length;
  inbox.changed.notify_all();
}

void fail_inbox(TensorInbox& inbox, Error error) {
  const std::lock_guard lock(inbox.mutex);
  if (inbox.failure.ok()) inbox.failure = std::move(error);
  inbox.changed.notify_all();
}

}  // namespace tandem::ring
