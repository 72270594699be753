#include "cli/session.h"

#include <algorithm>
#include <array>
#include <map>

#include "cli/answer.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "cli/room_plan.h"
#include "cli/room_report.h"
#include "weights/mapped_file.h"

namespace tandem::cli {
namespace {

std::string phase_text(ring::LoadEvent::Phase phase) {
  switch (phase) {
    case ring::LoadEvent::Phase::kConnecting:
      return "connecting";
    case ring::LoadEvent::Phase::kWaiting:
      return "waiting";
    case ring::LoadEvent::Phase::kSearching:
      return "searching";
    case ring::LoadEvent::Phase::kLoading:
      return "loading";
    case ring::LoadEvent::Phase::kReady:
      return "ready";
  }
  return "";
}

/// What all devices do while the ring opens, in one line.
class LoadProgress {
 public:
  void event(const ring::LoadEvent& event) {
    events_[event.layers.first] = event;
    uint64_t done = 0;
    uint64_t total = 0;
    std::string text;
    for (const auto& [first, one] : events_) {
      done += one.done;
      total += one.total;
      if (one.phase == ring::LoadEvent::Phase::kReady) continue;
      text += " " + one.peer + " layers " + ring::text(one.layers) + " " + phase_text(one.phase);
    }
    line_.show(text, done, total);
  }
  void ends(uint64_t done, uint64_t total) { line_.show("embedding and head", done, total); }
  void clear() { line_.clear(); }

 private:
  std::map<uint32_t, ring::LoadEvent> events_;
  ProgressLine line_;
};

}  // namespace

Result<std::shared_ptr<const wire::Tls>> open_tls(const std::string& key,
                                                  const std::string& identity) {
  constexpr uint64_t kMostKeyFile = 4096;
  if (key.empty()) return std::shared_ptr<const wire::Tls>();
  std::string text;
  if (key == "-") {
    TANDEM_ASSIGN(text, read_input(kMostKeyFile));
  } else {
    TANDEM_ASSIGN(text, weights::read_text_file(key, kMostKeyFile));
  }
  const auto parsed = wire::parse_room_key(text);
  if (!parsed.ok()) return parsed.error().in(key == "-" ? "standard input" : key);
  auto own = identity.empty() ? wire::Identity::create() : wire::Identity::open(identity);
  if (!own.ok()) return own.error();
  return wire::Tls::create(std::move(*own), *parsed);
}

Result<std::vector<ring::RingWorker>> open_workers(const ModelFlags& flags,
                                                   const weights::Checkpoint& checkpoint,
                                                   std::unique_ptr<ring::LocalWorkers>& local) {
  std::vector<ring::RingWorker> result;
  if (flags.local == 0) {
    if (flags.workers.empty()) return result;
    for (const std::string& one : split_commas(flags.workers)) {
      TANDEM_ASSIGN(auto parts, wire::split_pin(one));
      result.push_back({std::move(parts.first), {}, parts.second});
    }
    return result;
  }
  std::vector<std::string> arguments{"worker",    "--child",
                                     "--listen",  "127.0.0.1:0",
                                     "--models",  checkpoint.folder().string(),
                                     "--threads", std::to_string(flags.local_threads()),
                                     "--isa",     flags.isa};
  if (!flags.cache.empty()) arguments.insert(arguments.end(), {"--cache", flags.cache});
  TANDEM_ASSIGN(const auto experts, parse_limit(flags.experts_memory, "--experts-memory"));
  if (experts) {
    arguments.insert(arguments.end(), {"--experts-memory", std::to_string(*experts / flags.local)});
  }
  TANDEM_ASSIGN(local, ring::LocalWorkers::start(flags.local, executable().string(), arguments));
  for (const std::string& address : local->addresses()) result.push_back({address, {}});
  return result;
}

Result<std::vector<ring::RingWorker>> parse_spares(const std::string& text, uint32_t layers) {
  std::vector<ring::RingWorker> spares;
  if (text.empty()) return spares;
  for (const std::string& one : split_commas(text)) {
    const auto equals = one.rfind('=');
    if (equals == std::string::npos) {
      return invalid("--spares '" + one.substr(0, 300) + "', expected HOST:PORT=FIRST-LAST");
    }
    auto range = ring::parse_split(one.substr(equals + 1), layers, 1);
    if (!range.ok()) return range.error().in("--spares");
    TANDEM_ASSIGN(auto parts, wire::split_pin(one.substr(0, equals)));
    spares.push_back({std::move(parts.first), range->front(), parts.second});
  }
  return spares;
}

Result<model::StageOptions> own_stages(const ModelFlags& flags,
                                       std::shared_ptr<weights::PackedCache> cache) {
  model::StageOptions options;
  options.kv = flags.kv == "8" ? model::KvBits::k8 : model::KvBits::k16;
  options.weights = weight_bits(flags.weights);
  options.threads = flags.host_threads();
  TANDEM_ASSIGN(options.isa, model::parse_isa(flags.isa));
  options.pool = std::make_shared<ThreadPool>(options.threads);
  options.cache = std::move(cache);
  TANDEM_ASSIGN(options.experts_memory, parse_limit(flags.experts_memory, "--experts-memory"));
  return options;
}

Result<std::unique_ptr<weights::Manifest>> identify(const ModelFlags& flags,
                                                    weights::Checkpoint& checkpoint) {
  ProgressLine line;
  TANDEM_ASSIGN(
      weights::Manifest manifest,
      weights::make_manifest(checkpoint, flags.host_threads(), [&](uint64_t done, uint64_t total) {
        line.show("hashing the model", done, total);
        return !cancel_flag().load();
      }));
  weights::tell_contents(manifest, checkpoint);
  return std::make_unique<weights::Manifest>(std::move(manifest));
}

Result<Session> Session::open(const ModelFlags& flags, Model model, const Options& options) {
  TANDEM_TRY(flags.check());
  Session session;
  session.model_ = std::move(model);
  const model::ModelConfig& config = session.model_.config;
  weights::Checkpoint& checkpoint = *session.model_.checkpoint;
  session.context_ = std::min(options.context, config.context);
  session.batch_ = options.batch;
  session.quiet_ = flags.quiet;
  TANDEM_ASSIGN(session.cache_, open_cache(flags.cache, flags.quiet, flags.steady));

  TANDEM_ASSIGN(const auto workers, open_workers(flags, checkpoint, session.local_));
  ring::RingOptions ring;
  TANDEM_ASSIGN(ring.tls, open_tls(flags.key, flags.identity));
  if (!workers.empty() && flags.plan != "auto") {
    const auto count = static_cast<uint32_t>(workers.size());
    TANDEM_ASSIGN(const auto ranges, flags.split.empty()
                                         ? ring::split_evenly(config.layers, count)
                                         : ring::parse_split(flags.split, config.layers, count));
    ring.workers = workers;
    for (size_t i = 0; i < ranges.size(); ++i) ring.workers[i].layers = ranges[i];
  }

  // Shared: the ring calls it again when it is put together anew after a failure.
  const auto progress = std::make_shared<LoadProgress>();
  if (!workers.empty() || options.identify || options.room != nullptr) {
    TANDEM_ASSIGN(session.manifest_, identify(flags, checkpoint));
  } else if (session.cache_ != nullptr) {
    if (const auto known = weights::known_manifest(checkpoint)) {
      weights::tell_contents(*known, checkpoint);
    }
  }
  ring.config_json = checkpoint.config_json();
  ring.origin = origin_of(checkpoint);
  ring.config = config;
  ring.manifest = session.manifest_.get();
  ring.source = &checkpoint;
  TANDEM_ASSIGN(ring.local, own_stages(flags, session.cache_));
  if (!workers.empty() && flags.plan == "auto") {
    ring::ProbeOptions probe =
        probe_options(session.model_, session.manifest_.get(), ring.local, workers);
    probe.tls = ring.tls;
    probe.context = session.context_;
    TANDEM_ASSIGN(ring.workers, planned_workers(probe, flags.quiet));
  }
  if (options.room != nullptr) {
    ring::ProbeOptions probe =
        probe_options(session.model_, session.manifest_.get(), ring.local, {});
    probe.context = session.context_;
    TANDEM_ASSIGN(session.room_, deal_room(options.room, flags, std::move(probe)));
    ring.workers = session.room_->workers();
    ring.tls = options.room->tls();
    ring.dialler = options.room->dialler();
  }
  ring.local.profile = options.profile;
  ring.context = session.context_;
  ring.batch = options.batch;
  ring.survive = flags.recover && !flags.no_recovery;
  TANDEM_ASSIGN(ring.spares, parse_spares(flags.spares, config.layers));
  ring.progress = [progress](const ring::LoadEvent& event) { progress->event(event); };
  TANDEM_ASSIGN(session.events_, flags.observe.open_log());
  ring.events = session.events_;
  if (!flags.observe.metrics.empty()) {
    session.metrics_ = ring.metrics = std::make_shared<ring::HostMetrics>();
    TANDEM_ASSIGN(session.metrics_server_, flags.observe.serve([metrics = session.metrics_] {
      return metrics->all.text();
    }));
  }
  if (session.room_ != nullptr) {
    ring.replan = [room = session.room_](const std::vector<std::string>& lost) {
      return room->replan(lost);
    };
    if (ring.survive && session.room_->spares()) {
      ring.choose_spares = [room = session.room_](const std::vector<ring::RingWorker>& now) {
        return room->choose_spares(now);
      };
    }
    ring.listener = room_events(event_notes(flags.quiet), session.room_.get());
  }
  ring.progress = [progress, room = session.room_](const ring::LoadEvent& event) {
    if (!event.spare) progress->event(event);
    if (room != nullptr) room->loading(event);
  };
  ring.cancel = &cancel_flag();
  session.in_flight_ = ring.in_flight;
  const model::StageOptions local = session.stage_options_ = ring.local;
  TANDEM_ASSIGN(session.ring_, ring::Ring::open(std::move(ring)));
  TANDEM_ASSIGN(session.ends_,
                model::Ends::load(config, local, checkpoint, [&](uint64_t done, uint64_t total) {
                  progress->ends(done, total);
                  return !cancel_flag().load();
                }));
  progress->clear();
  if (session.room_ != nullptr) session.room_->loaded(session.ring_->stages());
  if (!flags.quiet && flags.table) session.show_table();
  return session;
}

void Session::tell(const ring::Answer& answer) const {
  constexpr std::array<std::string_view, 4> kFinishes{"end", "length", "context", "cancelled"};
  events_.write("answer", "",
                {{"prompt_tokens", int64_t{answer.prompt_tokens}},
                 {"reused_tokens", int64_t{answer.reused_tokens}},
                 {"tokens", static_cast<int64_t>(answer.tokens.size())},
                 {"prefill_tokens_per_second", answer.prefill_tokens_per_second()},
                 {"decode_tokens_per_second", answer.decode_tokens_per_second()},
                 {"finish", kFinishes.at(static_cast<size_t>(answer.finish))}});
}

model::StateIdentity Session::identity() const {
  model::StateIdentity identity;
  identity.model = sha256(manifest_->serialize());
  identity.last_layer = model_.config.layers;
  identity.weight_bits = static_cast<uint8_t>(stage_options_.weights);
  return identity;
}

Result<std::string> Session::resume(const std::string& path, ring::Conversation& conversation) {
  // The messages and hashes beside the layers' state are small.
  constexpr uint64_t kBeside = uint64_t{64} << 20;
  const uint64_t most = model::state_bytes(model_.config, 0, model_.config.layers, context_);
  auto file = model::StateFile::read(path, most + kBeside);
  if (!file.ok() && file.error().kind == ErrorKind::kNotFound) return std::string();
  if (!file.ok()) return file.error();
  if (const Status status = conversation.load(*file, identity()); !status.ok()) {
    return status.error().in(path);
  }
  return std::move(file->note);
}

void Session::show_table() {
  std::vector<std::vector<std::string>> rows{{"device", "layers", "weights", "kv cache"}};
  for (const ring::StageReport& stage : ring_->stages()) {
    // What the context may come to need; the host's own caches grow as positions are used.
    const uint64_t kv_bytes = model::state_bytes(model_.config, stage.layers.first,
                                                 stage.layers.last, context_, stage_options().kv);
    rows.push_back({stage.peer, ring::text(stage.layers), bytes_text(stage.weight_bytes),
                    bytes_text(kv_bytes)});
  }
  rows.push_back({"host", "embedding, head", bytes_text(ends_->bytes()), ""});
  note(table(rows, {false, false, true, true}) + "\n");
}

}  // namespace tandem::cli
