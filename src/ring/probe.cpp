#include "ring/probe.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "model/hidden.h"
#include "ring/host_peer.h"
#include "ring/meter.h"
#include "ring/pass_memory.h"
#include "ring/system_memory.h"

namespace tandem::ring {
namespace {

/// Layers that are measured: enough that a pass's fixed part does not count much and that weights
/// don't all stay in the nearest cache, few enough to be loaded soon.
constexpr uint32_t kMostLayers = 8;
constexpr uint32_t kFewestLayers = 2;
constexpr uint64_t kMostBytes = uint64_t{512} << 20;
/// Passes of up to so many tokens are those of an answer, wider ones of a prompt.
constexpr uint32_t kNarrow = 4;
/// Where passes begin, for up to 256 positions: an answer of some hundred tokens lies there, and so
/// does a prompt.
constexpr uint32_t kPosition = 128;
constexpr uint32_t kContext = 2048;

constexpr uint32_t kRepeats = 1000;  // as many as the budget allows
/// All rounds of a width: long enough that a moment of other work on the device does not count,
/// and what slow devices get.
constexpr auto kRoundTime = std::chrono::milliseconds(600);
constexpr uint32_t kMostRounds = 1000;

/// Of widths from `least` to `most`.
wire::Measure measurement(uint32_t context, uint32_t least, uint32_t most) {
  wire::Measure measure;
  measure.warm_up = 1;
  measure.repeats = kRepeats;
  measure.budget_ms = 400;
  for (const uint32_t width : kProbeWidths) {
    // Small contexts can't take the widest passes; a test's model is all that has them.
    if (width >= least && width <= most && 4 * width <= context) measure.widths.push_back(width);
  }
  if (measure.widths.empty()) return measure;
  measure.position = std::min(kPosition, context - 4 * measure.widths.back());
  return measure;
}

uint32_t probe_context(const ProbeOptions& options) {
  const uint32_t context = options.context == 0 ? options.config.context : options.context;
  return std::min({context, options.config.context, kContext});
}

uint64_t largest_tensor(const model::ModelConfig& config, const weights::TensorSource& source) {
  uint64_t largest = 0;
  for (const auto& tensor : model::layer_tensors(config, 0, config.layers)) {
    if (const auto* info = source.find(tensor.name)) largest = std::max(largest, info->bytes());
  }
  return largest;
}

/// The layers to measure with so much memory: from the middle of the model, where they are usual.
LayerRange layers_for(const ProbeOptions& options, uint64_t memory, uint32_t most = kMostLayers) {
  const model::ModelConfig& config = options.config;
  const uint64_t scratch = largest_tensor(config, *options.source);
  const uint32_t context = probe_context(options);
  const auto devices = std::max(
      1U, static_cast<uint32_t>(options.workers.size()) + (options.host_memory == 0 ? 0 : 1));
  // All together no more than the model has: what devices of one machine take of its caches.
  const uint32_t share = std::max(config.layers / devices, kFewestLayers);
  for (uint32_t count = std::min({most, share, config.layers}); count > 0; --count) {
    const uint32_t first = (config.layers - count) / 2;
    model::StageOptions stage = options.local;
    stage.first_layer = first;
    stage.last_layer = first + count;
    const uint64_t weights = model::stage_bytes(config, stage);
    const uint64_t state =
        model::state_bytes(config, first, first + count, context, options.local.kv);
    if (count > kFewestLayers && weights > kMostBytes) continue;
    if (weights + std::max(scratch, state + pass_bytes(config)) <= memory)
      return {first, first + count};
  }
  return {};
}

double milliseconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-6;
}

/// Of a pass at one of kProbeWidths. Wide ones come in the frames of a prompt, which all devices
/// work on at once; one that was not measured takes as long a token as the widest that was.
uint64_t time_of(const DeviceProbe& device, uint32_t width) {
  for (const auto* widths : {&device.together, &device.alone}) {
    for (const auto& measured : *widths) {
      if (measured.width == width) return measured.nanoseconds.median;
    }
  }
  const auto& widest = device.alone.back();
  return widest.nanoseconds.median * width / widest.width;
}

/// Everything between the first connection and the last; workers are told goodbye at the end.
class Prober {
 public:
  explicit Prober(const ProbeOptions& options) : options_(options) {
    if (options.manifest != nullptr) {
      model_.load.manifest = options.manifest->serialize();
      model_.load.model_hash = sha256(model_.load.manifest);
    }
    model_.load.config_json = options.config_json;
    model_.load.origin = options.origin;
    model_.load.weight_bits = static_cast<uint8_t>(options.local.weights);
    model_.load.kv_bits = static_cast<uint8_t>(options.local.kv);
    model_.load.context = probe_context(options);
    model_.config = &options.config;
    model_.source = options.source;
    model_.progress = [](const LoadEvent&) {};
    model_.cancel = options.cancel;
    model_.give_up = &give_up_;
    for (const RingWorker& worker : options.workers) {
      peers_.push_back(std::make_unique<Peer>(worker));
    }
    model_.tls = options.tls;
    model_.dialler = options.dialler;
  }
  ~Prober() {
    for (const auto& peer : peers_) {
      if (peer->control != nullptr) (void)peer->control->send({.type = wire::Type::kBye}).ok();
    }
  }
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  Result<RoomProbe> run() {
    TANDEM_TRY(host());
    TANDEM_TRY(connect());
    TANDEM_TRY(measure_in_turn());
    TANDEM_TRY(measure_together());
    TANDEM_TRY(measure_links());
    return std::move(result_);
  }

 private:
  void say(std::string_view what) const {
    if (options_.progress) options_.progress(what);
  }
  Status going() const {
    if (options_.cancel != nullptr && *options_.cancel) {
      return Error{ErrorKind::kCancelled, "stopped"};
    }
    return {};
  }

  /// Device `i` is measured, the host being 0.
  [[nodiscard]] bool measured(size_t i) const {
    return options_.devices.empty() || options_.devices[i];
  }
  [[nodiscard]] bool link_wanted(size_t a, size_t b) const {
    return !options_.links || options_.links(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
  }
  /// Somebody has to connect to worker `i`.
  [[nodiscard]] bool needed(size_t i) const {
    if (measured(i + 1)) return true;
    const size_t own = i + 1;
    for (size_t other = 0; other <= peers_.size(); ++other) {
      if (other != own && link_wanted(std::min(own, other), std::max(own, other))) return true;
    }
    return false;
  }
  Error fail(size_t worker, const Error& error) const {
    Error blamed = peers_[worker]->blame(error);
    if (options_.failed && error.kind != ErrorKind::kCancelled) options_.failed(worker, blamed);
    return blamed;
  }

  Status host() {
    if (!measured(0)) {
      result_.devices.emplace_back();
      result_.devices.back().id = "host";
      return {};
    }
    say("the host's layers");
    DeviceProbe device;
    device.id = "host";
    device.could_lend = available_memory();
    const uint64_t ends = model::ends_bytes(options_.config, options_.local.weights);
    device.memory = options_.host_memory.value_or(device.could_lend);
    device.memory = std::max(device.memory, ends);
    device.threads = options_.local.threads;
    device.layers = layers_for(options_, device.memory - ends);
    if (device.layers.count() > 0) {
      model::StageOptions stage = options_.local;
      stage.first_layer = device.layers.first;
      stage.last_layer = device.layers.last;
      const StageLoader& loader = options_.load ? options_.load : &model::Stage::load;
      TANDEM_ASSIGN(stage_, loader(options_.config, stage, *options_.source,
                                   [&](uint64_t, uint64_t) { return going().ok(); }));
      device.weight_bytes = stage_->bytes();
      meter_ =
          std::make_unique<StageMeter>(*stage_, options_.config.hidden_size, model_.load.context);
    }
    if (options_.measure_ends) {
      TANDEM_ASSIGN(ends_, model::Ends::load(options_.config, options_.local, *options_.source,
                                             [&](uint64_t, uint64_t) { return going().ok(); }));
    }
    result_.devices.push_back(std::move(device));
    return {};
  }

  /// Connects to all workers and has them load, at once.
  Status connect() {
    if (peers_.empty()) return {};
    say("workers load some layers");
    std::vector<Status> statuses(peers_.size());
    std::vector<double> seconds(peers_.size(), 0);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (!needed(i)) continue;
      threads.emplace_back([&, i] {
        Peer& peer = *peers_[i];
        Status status = peer.connect(model_);
        if (status.ok()) {
          const uint64_t memory = peer.welcome.memory_limit == 0 && peer.welcome.memory_free == 0
                                      ? UINT64_MAX
                                      : peer.welcome.memory_free;
          peer.worker.layers = layers_for(options_, memory, measured(i + 1) ? kMostLayers : 1);
          const auto start = wire::Clock::now();
          if (peer.worker.layers.count() > 0) status = peer.load(model_);
          seconds[i] = std::chrono::duration<double>(wire::Clock::now() - start).count();
        }
        if (!status.ok()) {
          statuses[i] = fail(i, status.error());
          give_up_ = true;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const bool cancelled : {false, true}) {
      for (const Status& status : statuses) {
        if (!status.ok() && (status.error().kind == ErrorKind::kCancelled) == cancelled) {
          return status;
        }
      }
    }
    for (size_t i = 0; i < peers_.size(); ++i) {
      const Peer& peer = *peers_[i];
      DeviceProbe device;
      device.id = peer.worker.label();
      device.memory = peer.welcome.memory_free;
      const uint64_t used = peer.welcome.memory_limit == 0
                                ? 0
                                : peer.welcome.memory_limit -
                                      std::min(peer.welcome.memory_limit, peer.welcome.memory_free);
      device.could_lend = std::max(device.memory, used + peer.welcome.memory_available);
      device.threads = peer.welcome.threads;
      device.layers = peer.worker.layers;
      device.weight_bytes = peer.ready.weight_bytes;
      device.load_bytes = peer.ready.streamed;
      device.load_seconds = seconds[i];
      result_.devices.push_back(std::move(device));
    }
    return {};
  }

  /// As a lap of an answer does it: one device after the other, each woken for its pass, and what
  /// the others run in between is gone through the caches that they share.
  Status measure_in_turn() {
    for (const uint32_t width : kProbeWidths) {
      const uint32_t least = width > kNarrow ? kNarrow + 1 : 1;
      wire::Measure one = measurement(model_.load.context, least, least > 1 ? UINT32_MAX : kNarrow);
      if (std::find(one.widths.begin(), one.widths.end(), width) == one.widths.end()) break;
      say("laps of " + std::to_string(width) + " tokens");
      one.warm_up = 0;
      one.repeats = 1;
      one.widths = {width};
      std::vector<std::vector<uint64_t>> times(result_.devices.size());
      std::vector<uint64_t> laps;
      std::vector<uint64_t> tokens;
      const auto deadline = wire::Clock::now() + kRoundTime;
      for (uint32_t round = 0; round <= kMostRounds; ++round) {
        TANDEM_TRY(going());
        if (ends_ != nullptr) TANDEM_TRY(run_ends(width, laps, tokens));
        for (size_t i = 0; i < times.size(); ++i) {
          if (result_.devices[i].layers.count() == 0 || !measured(i)) continue;
          TANDEM_ASSIGN(const uint64_t took, i == 0 ? measure_here(one) : measure_there(i, one));
          // The first one finds nothing in its place yet.
          if (round > 0) times[i].push_back(took);
        }
        if (round >= 3 && wire::Clock::now() > deadline) break;
      }
      for (size_t i = 0; i < times.size(); ++i) {
        if (times[i].empty()) continue;
        result_.devices[i].alone.push_back(
            {width, static_cast<uint32_t>(times[i].size()), spread(times[i])});
      }
      if (ends_ == nullptr) continue;
      if (width == 1) result_.host_ms = milliseconds(spread(laps).median);
      result_.host_token_ms = milliseconds(spread(tokens).median) / width;
    }
    return {};
  }

  Result<uint64_t> measure_here(const wire::Measure& measure) {
    TANDEM_TRY(meter_->begin(measure));
    for (bool done = false; !done;) {
      TANDEM_ASSIGN(done, meter_->step());
    }
    return meter_->result().widths.front().nanoseconds.median;
  }

  Result<uint64_t> measure_there(size_t device, const wire::Measure& measure) {
    Peer& peer = *peers_[device - 1];
    if (const Status sent = peer.send_measure(measure); !sent.ok()) {
      return fail(device - 1, sent.error());
    }
    const auto answer = peer.await_measured(measure);
    if (!answer.ok()) return fail(device - 1, answer.error());
    return answer->widths.front().nanoseconds.median;
  }

  Status measure_together() {
    std::vector<size_t> able;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (peers_[i]->worker.layers.count() > 0 && measured(i + 1)) able.push_back(i);
    }
    if (able.size() < 2) return {};
    say("all workers at once");
    const wire::Measure measure = measurement(model_.load.context, kNarrow + 1, UINT32_MAX);
    if (measure.widths.empty()) return {};
    for (const size_t i : able) {
      const Status sent = peers_[i]->send_measure(measure);
      if (!sent.ok()) return fail(i, sent.error());
    }
    for (const size_t i : able) {
      auto answer = peers_[i]->await_measured(measure);
      if (!answer.ok()) return fail(i, answer.error());
      result_.devices[i + 1].together = std::move(answer->widths);
    }
    return {};
  }

  Status measure_links() {
    std::vector<wire::Activate> keys(peers_.size());
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = *peers_[i];
      if (peer.worker.layers.count() == 0) continue;
      keys[i].number = 1;
      for (wire::Key* key : {&keys[i].in, &keys[i].out}) {
        if (::getrandom(key->data(), key->size(), 0) != static_cast<ssize_t>(key->size())) {
          return Error{ErrorKind::kIo, "the system gives no random bytes"};
        }
      }
      Status status = peer.send_activate(keys[i]);
      if (status.ok()) status = peer.await_activated();
      if (!status.ok()) return fail(i, status.error());
    }
    for (uint32_t b = 0; b < peers_.size(); ++b) {
      if (peers_[b]->worker.layers.count() == 0) continue;
      TANDEM_TRY(going());
      say("links to " + peers_[b]->worker.label());
      if (link_wanted(0, b + 1)) {
        const auto echo = peers_[b]->link(wire::Role::kEcho, keys[b].in);
        if (!echo.ok()) return fail(b, echo.error());
        const auto tested = measure_link(**echo);
        if (!tested.ok()) return fail(b, tested.error());
        result_.links.push_back({0, b + 1, tested->rtt_ns, tested->bytes_per_second});
      }
      for (uint32_t a = 0; a < b; ++a) {
        if (peers_[a]->worker.layers.count() == 0 || !link_wanted(a + 1, b + 1)) continue;
        TANDEM_TRY(going());
        // As a ring links them: directly, or by the other way.
        const RingWorker& to = peers_[b]->worker;
        const bool by_relay = options_.by_relay && options_.by_relay(a + 1, b + 1);
        for (const std::string& where : {by_relay ? "" : to.way_for_workers(), to.relay}) {
          if (where.empty()) continue;
          bool refused = false;
          const auto link =
              peers_[a]->test_link({keys[b].in, peers_[b]->fingerprint, where}, refused);
          if (!link.ok() && !refused) return fail(a, link.error());
          if (!link.ok()) continue;
          result_.links.push_back({a + 1, b + 1, link->rtt_ns, link->bytes_per_second});
          break;
        }
      }
    }
    return {};
  }

  /// Embedding of `width` tokens, and the head for one.
  Status run_ends(uint32_t width, std::vector<uint64_t>& laps, std::vector<uint64_t>& tokens) {
    const std::vector<uint32_t> ids(width, 0);
    const auto since = [](wire::Clock::time_point start) {
      return static_cast<uint64_t>(std::chrono::nanoseconds(wire::Clock::now() - start).count());
    };
    const auto start = wire::Clock::now();
    TANDEM_ASSIGN(const auto hidden, ends_->embed(ids, 0));
    tokens.push_back(since(start));
    TANDEM_TRY(ends_->logits(hidden, width - 1, 1, logits_));
    laps.push_back(since(start));
    return {};
  }

  const ProbeOptions& options_;
  PeerModel model_;
  std::atomic<bool> give_up_{false};
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unique_ptr<model::Stage> stage_;
  std::unique_ptr<StageMeter> meter_;
  std::unique_ptr<model::Ends> ends_;
  std::vector<float> logits_;
  RoomProbe result_;
};

}  // namespace

Result<RoomProbe> probe_room(const ProbeOptions& options) {
  if (options.source == nullptr || (options.manifest == nullptr && !options.workers.empty())) {
    return invalid("a probe needs the model's tensors, and their manifest if there are workers");
  }
  if (options.context > options.config.context) {
    return invalid("a context of " + std::to_string(options.context) +
                   " positions, the model has " + std::to_string(options.config.context));
  }
  std::vector<std::string> addresses;
  for (const RingWorker& worker : options.workers) addresses.push_back(worker.address);
  std::sort(addresses.begin(), addresses.end());
  const auto twice = std::adjacent_find(addresses.begin(), addresses.end());
  if (twice != addresses.end()) {
    return invalid("worker " + *twice + " is named twice: its memory would count twice");
  }
  return Prober(options).run();
}

PlanModel plan_model(const model::ModelConfig& config, const model::StageOptions& bits,
                     uint32_t context, const weights::TensorSource& source) {
  PlanModel model;
  model.hidden_size = config.hidden_size;
  model.context = context;
  model.ends_bytes = model::ends_bytes(config, bits.weights);
  model.load_bytes = largest_tensor(config, source);
  const double usual =
      static_cast<double>(model::bytes_read(config, bits.weights, 0, config.layers)) /
      config.layers;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    model::StageOptions stage = bits;
    stage.first_layer = layer;
    stage.last_layer = layer + 1;
    PlanLayer one;
    one.weight_bytes = model::stage_bytes(config, stage);
    stage.weights = model::WeightBits::k4;
    one.weight_bytes_4 = model::stage_bytes(config, stage);
    one.state_bytes = model::state_bytes(config, layer, layer + 1, context, bits.kv);
    one.work =
        static_cast<double>(model::bytes_read(config, bits.weights, layer, layer + 1)) / usual;
    model.layers.push_back(one);
  }
  for (uint32_t eighths = 7, smaller = context; smaller >= 512; --eighths) {
    if (eighths < 4) {
      smaller /= 2;
      eighths = 7;
    }
    ContextOption option;
    option.context = smaller / 8 * eighths;
    for (uint32_t layer = 0; layer < config.layers; ++layer) {
      option.state_bytes.push_back(
          model::state_bytes(config, layer, layer + 1, option.context, bits.kv));
    }
    model.smaller.push_back(std::move(option));
  }
  return model;
}

PlanInput plan_input(const ProbeOptions& options, const RoomProbe& probe) {
  PlanInput input;
  input.model =
      plan_model(options.config, options.local,
                 options.context == 0 ? options.config.context : options.context, *options.source);
  input.model.host_ms = probe.host_ms;
  input.model.host_token_ms = probe.host_token_ms;
  for (const DeviceProbe& measured : probe.devices) {
    PlanDevice device;
    device.id = measured.id;
    device.could_lend = measured.could_lend;
    PlanBackend backend;
    backend.memory = measured.memory;
    // Workers count the buffers of a pass too.
    const uint64_t buffers = input.devices.empty() ? 0 : pass_bytes(options.config);
    if (backend.memory != 0) backend.memory -= std::min(backend.memory - 1, buffers);
    if (measured.load_seconds > 0 && measured.load_bytes > 0) {
      device.load_bytes_per_second =
          static_cast<double>(measured.load_bytes) / measured.load_seconds;
    }
    double work = 0;
    for (uint32_t layer = measured.layers.first; layer < measured.layers.last; ++layer) {
      work += input.model.layers[layer].work;
    }
    if (!measured.alone.empty()) {
      std::array<double, kProbeWidths.size()> ms{};
      for (size_t i = 0; i < ms.size(); ++i) {
        ms[i] = milliseconds(time_of(measured, kProbeWidths[i])) / work;
      }
      backend.layer_ms = ms;
    }
    device.backends.push_back(std::move(backend));
    input.devices.push_back(std::move(device));
  }
  for (const LinkProbe& link : probe.links) {
    input.links.push_back({link.a, link.b, milliseconds(link.rtt_ns.median),
                           static_cast<double>(link.bytes_per_second.median)});
  }
  return input;
}

}  // namespace tandem::ring
