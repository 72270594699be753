// How a ring is put together: loading, linking, proving; at first and after a failure.
#include <sys/random.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "ring/host_state.h"

namespace tandem::ring {
namespace {

Status random_key(wire::Key& key) {
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) {
    return Error{ErrorKind::kIo, "the system gives no random bytes"};
  }
  return {};
}

}  // namespace

RingState::~RingState() {
  monitor_.reset();
  drop_spares();
  for (const auto& peer : peers_) peer->leave();
  for (const auto& spare : spares_) spare->leave();
}

Status RingState::check_options() {
  const uint32_t layers = options_.config.layers;
  std::vector<LayerRange> ranges;
  for (const RingWorker& worker : options_.workers) ranges.push_back(worker.layers);
  TANDEM_TRY(check_split(ranges, layers));
  for (const RingWorker& spare : options_.spares) {
    if (!options_.survive) return invalid("spares of a ring that does not survive a failure");
    const Status status = check_split({spare.layers}, layers);
    if (!status.ok()) return status.error().in("spare " + spare.address);
  }
  recurrent_ = options_.config.recurrent_layers(0, layers) != 0;
  if (options_.choose_spares && (!options_.survive || !options_.spares.empty())) {
    return invalid("spares are either given or chosen, for a ring that survives a failure");
  }
  if (options_.context == 0) options_.context = options_.config.context;
  if (options_.context > options_.config.context) {
    return invalid("a context of " + std::to_string(options_.context) +
                   " positions, the model has " + std::to_string(options_.config.context));
  }
  if (options_.batch > wire::kMaxFrameTokens) {
    return invalid("batches of " + std::to_string(options_.batch) + " tokens, expected 0 to " +
                   std::to_string(wire::kMaxFrameTokens));
  }
  if (options_.in_flight < 1 || options_.in_flight > 256) {
    return invalid(std::to_string(options_.in_flight) + " frames in flight, expected 1 to 256");
  }
  if (options_.source == nullptr || (options_.manifest == nullptr && !ranges.empty())) {
    return invalid("a ring needs the model's tensors, and their manifest if it has workers");
  }
  return {};
}

Status RingState::open() {
  TANDEM_TRY(check_options());
  for (const RingWorker& worker : options_.workers) {
    peers_.push_back(std::make_unique<Peer>(worker));
  }
  for (const RingWorker& spare : options_.spares) {
    spares_.push_back(std::make_unique<Peer>(spare));
  }
  return establish();
}

PeerModel RingState::peer_model() {
  PeerModel model;
  // Without workers there may be no manifest, and no need of one.
  if (options_.manifest != nullptr) {
    model.load.manifest = options_.manifest->serialize();
    model.load.model_hash = sha256(model.load.manifest);
  }
  model.load.config_json = options_.config_json;
  model.load.origin = options_.origin;
  model.load.weight_bits = static_cast<uint8_t>(options_.local.weights);
  model.load.kv_bits = static_cast<uint8_t>(options_.local.kv);
  model.load.context = options_.context;
  model.config = &options_.config;
  model.source = options_.source;
  model.progress = [this](const LoadEvent& event) {
    if (!options_.progress) return;
    const std::lock_guard lock(progress_mutex_);
    options_.progress(event);
  };
  model.tls = options_.tls;
  model.dialler = options_.dialler;
  model.cancel = options_.cancel;
  model.give_up = &give_up_;
  return model;
}

Result<std::unique_ptr<Station>> RingState::load_own(LayerRange layers) {
  auto station = std::make_unique<Station>();
  station->layers = layers;
  model::StageOptions stage = options_.local;
  stage.first_layer = layers.first;
  stage.last_layer = layers.last;
  const auto progress = peer_model().progress;
  const StageLoader& loader = options_.load ? options_.load : &model::Stage::load;
  auto loaded =
      loader(options_.config, stage, *options_.source, [&](uint64_t done, uint64_t total) {
        progress({"host", layers, LoadEvent::Phase::kLoading, done, total});
        return !give_up_ && !cancelled();
      });
  if (!loaded.ok()) return loaded.error().in("the host's layers " + text(layers));
  station->stage = std::move(*loaded);
  const uint64_t bytes = station->stage->bytes();
  progress({"host", layers, LoadEvent::Phase::kReady, bytes, bytes});
  return station;
}

// What no worker has. Stages that are loaded already stay, so a run of layers may come to be two.
Status RingState::load_local() {
  std::vector<std::unique_ptr<Station>> own;
  Status status;
  auto fill = [&](uint32_t first, uint32_t last) {
    while (first < last && status.ok()) {
      LayerRange missing{first, last};
      auto held = own_.end();
      for (auto station = own_.begin(); station != own_.end(); ++station) {
        if (*station == nullptr || (*station)->layers.last > last) continue;
        if ((*station)->layers.first == first) held = station;
        if ((*station)->layers.first > first) {
          missing.last = std::min(missing.last, (*station)->layers.first);
        }
      }
      if (held != own_.end()) {
        own.push_back(std::move(*held));
      } else if (auto station = load_own(missing); station.ok()) {
        own.push_back(std::move(*station));
      } else {
        status = station.error();
        return;
      }
      first = own.back()->layers.last;
    }
  };
  uint32_t first = 0;
  for (const auto& peer : peers_) {
    fill(first, peer->worker.layers.first);
    first = peer->worker.layers.last;
  }
  fill(first, options_.config.layers);
  if (!status.ok()) {
    // What is loaded is for the next attempt.
    for (auto& station : own_) {
      if (station != nullptr) own.push_back(std::move(station));
    }
  }
  own_ = std::move(own);
  return status;
}

Status RingState::connect() {
  give_up_ = false;
  const PeerModel model = peer_model();
  std::vector<std::pair<Peer*, Status>> openings;
  for (const auto& peer : peers_) {
    if (!peer->healthy) openings.emplace_back(peer.get(), Status());
  }
  for (const auto& spare : spares_) {
    if (!spare->healthy && !repairing_) openings.emplace_back(spare.get(), Status());
  }
  std::vector<std::thread> threads;
  threads.reserve(openings.size());
  for (auto& opening : openings) {
    threads.emplace_back([&model, &opening, this] {
      opening.second = opening.first->open(model);
      if (!opening.second.ok()) give_up_ = true;
    });
  }
  Status local = load_local();
  if (!local.ok()) give_up_ = true;
  for (std::thread& thread : threads) thread.join();
  for (const auto& [peer, status] : openings) {
    if (!status.ok() && status.error().kind != ErrorKind::kCancelled) peer->fail(status.error());
  }
  // The cause first, then those that were only told to stop.
  auto worth_telling = [&](const Status& status) {
    return !status.ok() && status.error().kind != ErrorKind::kCancelled;
  };
  if (worth_telling(local)) return local;
  for (const auto& [peer, status] : openings) {
    if (worth_telling(status)) return status;
  }
  if (!local.ok()) return local;
  for (const auto& [peer, status] : openings) {
    if (!status.ok()) return status;
  }
  return {};
}

Status RingState::activate_all() {
  ++activation_;
  keys_.assign(peers_.size(), {});
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = *peers_[i];
    peer.upstream = peer.downstream = nullptr;
    peer.relayed = peer.next_by_relay = false;
    keys_[i].number = activation_;
    TANDEM_TRY(random_key(keys_[i].in));
    TANDEM_TRY(random_key(keys_[i].out));
    if (const Status status = peer.send_activate(keys_[i]); !status.ok()) {
      peer.fail(peer.blame(status.error()));
      return peer.blame(status.error());
    }
  }
  for (const auto& peer : peers_) {
    if (const Status status = peer->await_activated(); !status.ok()) {
      peer->fail(peer->blame(status.error()));
      return peer->blame(status.error());
    }
  }
  return {};
}

Status RingState::link_station(Station& station) {
  auto key_of = [&](const Peer* wanted) -> const wire::Activate& {
    const auto at = std::find_if(peers_.begin(), peers_.end(),
                                 [&](const auto& peer) { return peer.get() == wanted; });
    return keys_[static_cast<size_t>(at - peers_.begin())];
  };
  Peer& first = *station.peers.front();
  Peer& last = *station.peers.back();
  auto in = first.link(wire::Role::kLinkIn, key_of(&first).in);
  if (!in.ok()) {
    first.fail(in.error());
    return in.error();
  }
  station.in = std::move(*in);
  auto out = last.link(wire::Role::kLinkOut, key_of(&last).out);
  if (!out.ok()) {
    last.fail(out.error());
    return out.error();
  }
  station.out = std::move(*out);
  return {};
}

/// Has worker `i` dial the next one: as it is, else by its other way. False: by neither.
Result<bool> RingState::link_workers(size_t i) {
  Peer& from = *peers_[i];
  Peer& to = *peers_[i + 1];
  from.relayed = detours_.contains(way(i));
  if (from.relayed) return false;
  const std::string& relay = to.worker.relay;
  std::vector<std::string> ways;
  if (!no_links_.contains(way(i))) ways.push_back(to.worker.way_for_workers());
  if (!relay.empty() && (ways.empty() || ways.front() != relay)) ways.push_back(relay);
  for (const std::string& where : ways) {
    bool refused = false;
    const Status dialed = from.dial({keys_[i + 1].in, to.fingerprint, where}, refused);
    if (!dialed.ok() && !refused) {
      from.fail(from.blame(dialed.error()));
      return from.blame(dialed.error());
    }
    from.next_by_relay = where == relay;
    if (dialed.ok()) return true;
  }
  from.next_by_relay = false;
  from.relayed = true;
  return false;
}

Status RingState::link() {
  stations_.clear();
  remote_.clear();
  std::set<Way> were;
  std::set<Way> by_relay;
  for (size_t i = 0; i + 1 < peers_.size(); ++i) {
    if (peers_[i]->relayed) were.insert(way(i));
    if (peers_[i]->next_by_relay) by_relay.insert(way(i));
  }
  TANDEM_TRY(activate_all());
  size_t own = 0;
  auto own_until = [&](uint32_t layer) {
    while (own < own_.size() && own_[own]->layers.first < layer) {
      stations_.push_back(own_[own++].get());
    }
  };
  uint32_t layer = 0;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = *peers_[i];
    bool direct = false;
    if (peer.worker.layers.first > layer || i == 0) {
      own_until(peer.worker.layers.first);
    } else {
      TANDEM_ASSIGN(direct, link_workers(i - 1));
    }
    if (repairing_ && i > 0 && peers_[i - 1]->relayed && !were.contains(way(i - 1))) {
      emit(Event::Kind::kDetour, peer.worker.label(),
           peers_[i - 1]->name() + " and " + peer.name() + " go on through the host");
    }
    if (repairing_ && i > 0 && peers_[i - 1]->next_by_relay && !by_relay.contains(way(i - 1))) {
      emit(Event::Kind::kRelay, peer.worker.label(),
           peers_[i - 1]->name() + " reaches " + peer.name() + " through the relay now");
    }
    if (direct) {
      peers_[i - 1]->downstream = &peer;
      peer.upstream = peers_[i - 1].get();
    } else {
      remote_.push_back(std::make_unique<Station>());
      stations_.push_back(remote_.back().get());
      stations_.back()->layers.first = peer.worker.layers.first;
    }
    stations_.back()->peers.push_back(&peer);
    stations_.back()->layers.last = peer.worker.layers.last;
    layer = peer.worker.layers.last;
  }
  own_until(options_.config.layers);
  for (const auto& station : remote_) TANDEM_TRY(link_station(*station));
  return {};
}

void RingState::watch() {
  collect();
  monitor_.reset();
  std::vector<Peer*> watched;
  for (const auto& peer : peers_) watched.push_back(peer.get());
  std::vector<Peer*> spares;
  for (const auto& spare : spares_) {
    if (spare->healthy) spares.push_back(spare.get());
  }
  monitor_ = std::make_unique<Monitor>(watched, spares, activation_, wake_, options_.survive);
}

Status RingState::prove() {
  watch();
  length_ = floor_ = window_floor_ = 0;
  marks_.clear();
  pending_ = wire::Control::kReset;
  pending_length_ = 0;
  for (const auto& station : own_) {
    station->sequence = station->stage->new_sequence(options_.context);
  }
  if (peers_.empty()) return {};
  // "All ready" is only true once something has been all the way round.
  model::HiddenStates zero;
  zero.resize(1, options_.config.hidden_size);
  TANDEM_TRY(forward(std::move(zero), 0, 1));
  for (const auto& station : own_) station->pass_means.skip(station->totals);
  for (const auto& station : remote_) station->hop_ms = {};
  return forget();
}

Status RingState::establish() {
  const auto start = wire::Clock::now();
  if (options_.metrics != nullptr) options_.metrics->state.set(HostState::kOpening);
  monitor_.reset();
  failure_.reset();
  wake_.clear();
  // A worker that went away since it was last heard shows when it is activated; then it gets one
  // chance to be loaded anew.
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    status = connect();
    const bool lost = std::any_of(peers_.begin(), peers_.end(),
                                  [](const auto& peer) { return !peer->why.empty(); });
    if (!status.ok() && lost && options_.survive && options_.replan) {
      // The others can do without it, and who planned can say who has its layers.
      failure_ = status.error();
      opening_ = true;
      status = repair();
      opening_ = false;
      report_opening(start, status);
      return status;
    }
    if (!status.ok()) break;
    status = link();
    const bool linked = status.ok();
    if (linked) status = prove();
    if (linked && status.ok()) break;
    if (options_.survive) {
      // All were there, so this is no mistake in an address.
      failure_ = status.error();
      return status.error().kind == ErrorKind::kCancelled ? status : repair();
    }
    if (linked) break;
  }
  if (!status.ok()) failure_ = status.error();
  report_opening(start, status);
  if (status.ok()) choose_spares();
  return status;
}

}  // namespace tandem::ring
