// How a ring goes on without a worker that failed, or around a link that did.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "ring/host_state.h"
#include "ring/stage_cache.h"
#include "ring/system_memory.h"

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

/// No new attempt begins after this.
constexpr auto kRepairTime = 45s;
constexpr int kMostAttempts = 6;
/// How long a worker that went away may take to be there again before others get its layers.
constexpr auto kReconnectTime = 3s;
constexpr auto kHeadStart = 500ms;
/// Failures further apart than this have nothing to do with each other.
constexpr auto kLately = 2min;
constexpr uint32_t kManyStrikes = 2;

}  // namespace

uint32_t RingState::Strikes::add() {
  const auto now = wire::Clock::now();
  count = now - last > kLately ? 1 : count + 1;
  last = now;
  return count;
}

bool RingState::Strikes::many() const {
  return count > kManyStrikes && wire::Clock::now() - last <= kLately;
}

Status RingState::repair() {
  repairing_ = true;
  take_arrivals();
  const auto deadline = wire::Clock::now() + kRepairTime;
  std::vector<std::string> lost;
  Status status = alive();
  if (status.ok()) {
    lost.push_back(std::exchange(slow_, {}));
    collect();
    monitor_.reset();
    const auto workers = options_.replan(lost);
    if (workers.ok()) {
      emit(Event::Kind::kReplanned, lost.front(), "the layers are dealt anew");
      status = deal(*workers);
    } else {
      emit(Event::Kind::kSlow, lost.front(), "it stays as it is: " + workers.error().message);
    }
  }
  for (int attempt = 0;; ++attempt) {
    if (!status.ok()) note_failure(status.error());
    monitor_.reset();
    failure_.reset();
    wake_.clear();
    bool hopeless = false;
    status = replace(lost, hopeless);
    if (status.ok()) status = link();
    if (status.ok()) status = prove();
    if (status.ok()) break;
    if (hopeless || status.error().kind == ErrorKind::kCancelled || attempt + 1 == kMostAttempts ||
        (!opening_ && wire::Clock::now() > deadline)) {
      failure_ = status.error();
      break;
    }
  }
  repairing_ = false;
  if (status.ok()) choose_spares();
  return status;
}

// Says what failed, and remembers which link it was.
void RingState::note_failure(const Error& failure) {
  collect();
  const auto link = monitor_ == nullptr ? Monitor::Link{} : monitor_->link();
  if (link.from != nullptr && link.to != nullptr) {
    const Way way{link.from->worker.address, link.to->worker.address};
    // First the other way between the two, then through the host.
    if (broken_[way].add() >= kManyStrikes || link.stalled) {
      const bool last = link.to->worker.relay.empty() || link.from->next_by_relay;
      (last ? detours_ : no_links_).insert(way);
    }
  } else if (Peer* peer = link.from != nullptr ? link.from : link.to; peer != nullptr) {
    // A worker whose links to the host break again and again is no use, whoever is to blame.
    const Way way{peer->worker.address, ""};
    broken_[way].add();
    if (broken_[way].many()) peer->fail(failure);
  }
  const bool anybody = std::any_of(peers_.begin(), peers_.end(),
                                   [](const auto& peer) { return !peer->why.empty(); });
  if (!anybody) emit(Event::Kind::kLink, "", failure.message);
}

/// Has somebody healthy for every layer. `lost` gets the addresses of those who are not.
/// `hopeless`: it failed, and trying again won't help.
Status RingState::replace(std::vector<std::string>& lost, bool& hopeless) {
  for (const auto& peer : peers_) {
    if (peer->healthy || peer->why.empty()) continue;
    peer->control.reset();
    strikes_[peer->worker.address].add();
    const std::string& address = peer->worker.address;
    if (std::find(lost.begin(), lost.end(), address) == lost.end()) lost.push_back(address);
    emit(Event::Kind::kLost, peer->worker.label(), peer->why);
  }
  take_spares();
  // Who fails while it loads for the first time would fail again.
  if (!opening_) TANDEM_TRY(reconnect());
  std::erase_if(lost, [&](const std::string& address) {
    return std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
      return peer->healthy && peer->worker.address == address;
    });
  });
  const bool complete = std::none_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return !peer->healthy && !peer->why.empty();
  });
  if (!complete && options_.replan) {
    auto workers = options_.replan(lost);
    if (!workers.ok()) {
      hopeless = true;
      const auto gone = std::find_if(peers_.begin(), peers_.end(),
                                     [](const auto& peer) { return !peer->why.empty(); });
      return workers.error().in((*gone)->why);
    }
    emit(Event::Kind::kReplanned, "", "the layers are dealt anew");
    TANDEM_TRY(deal(*workers));
  } else if (!complete) {
    Status status = reassign();
    hopeless = !status.ok();
    if (hopeless) return status;
  }
  return connect();
}

void RingState::take_spares() {
  for (auto& peer : peers_) {
    if (peer->healthy || peer->why.empty()) continue;
    const auto spare = std::find_if(spares_.begin(), spares_.end(), [&](const auto& one) {
      return one->healthy && one->worker.layers == peer->worker.layers;
    });
    if (spare == spares_.end()) continue;
    // Who was replaced may be there again when it is needed next.
    std::swap(*spare, peer);
    emit(Event::Kind::kSpare, peer->worker.label(),
         peer->name() + " takes over from worker " + (*spare)->worker.label());
  }
}

Status RingState::reconnect() {
  struct Attempt {
    std::unique_ptr<Peer>* place;
    Peer* peer;
    std::shared_ptr<std::atomic<bool>> filled;  ///< the place, by whoever came first
    bool waits;                                 ///< a little, for another one to fill it
    Status status;
  };
  std::vector<Attempt> attempts;
  std::vector<std::unique_ptr<Peer>> others;
  for (auto& place : peers_) {
    if (place->healthy || place->why.empty()) continue;
    const auto filled = std::make_shared<std::atomic<bool>>(false);
    auto try_it = [&](Peer& peer) {
      if (strikes_[peer.worker.address].many()) return;
      // Of two ways the direct one is the better, and a relay is not ours alone.
      attempts.push_back({&place, &peer, filled, peer.by_relay && !place->frozen, {}});
    };
    if (!place->frozen) try_it(*place);
    // A device that only the way to is lost of can be reached by another one.
    if (!place->worker.relay.empty() && place->worker.relay != place->worker.address) {
      others.push_back(std::make_unique<Peer>(place->worker));
      others.back()->by_relay = !place->by_relay;
      try_it(*others.back());
    }
    for (const auto& spare : spares_) {
      if (!spare->healthy && spare->worker.layers == place->worker.layers) try_it(*spare);
    }
  }
  give_up_ = false;
  const PeerModel model = peer_model();
  const auto deadline = wire::Clock::now() + kReconnectTime;
  std::vector<std::thread> threads;
  threads.reserve(attempts.size());
  for (Attempt& attempt : attempts) {
    threads.emplace_back([&] {
      const auto begin = wire::Clock::now() + kHeadStart;
      while (attempt.waits && !*attempt.filled && !cancelled() && wire::Clock::now() < begin) {
        std::this_thread::sleep_for(20ms);
      }
      if (*attempt.filled) {
        attempt.status = Error{ErrorKind::kCancelled, "stopped"};
        return;
      }
      attempt.status = attempt.peer->open_until(model, deadline,
                                                [&] { return !cancelled() && !*attempt.filled; });
      if (attempt.status.ok()) *attempt.filled = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (cancelled()) return Error{ErrorKind::kCancelled, "stopped"};
  for (const Attempt& attempt : attempts) {
    if (!attempt.status.ok() || (*attempt.place)->healthy) continue;
    const auto spare = std::find_if(spares_.begin(), spares_.end(),
                                    [&](const auto& one) { return one.get() == attempt.peer; });
    if (spare != spares_.end()) std::swap(*spare, *attempt.place);
    const auto other = std::find_if(others.begin(), others.end(),
                                    [&](const auto& one) { return one.get() == attempt.peer; });
    if (other != others.end()) std::swap(*other, *attempt.place);
  }
  for (const auto& other : others) other->leave();
  for (const auto& attempt : attempts) {
    if (!attempt.status.ok() || attempt.place->get() != attempt.peer) continue;
    emit(Event::Kind::kReconnected, attempt.peer->worker.label(),
         attempt.peer->name() + " is there again");
    if (attempt.peer->by_relay) {
      emit(Event::Kind::kRelay, attempt.peer->worker.label(),
           attempt.peer->name() + " is reached through the relay now");
    }
  }
  return {};
}

/// A worker of the ring that has loaded the layers of peer `gone` beside its own. Null: none could,
/// and `reasons` says why.
Result<std::unique_ptr<Peer>> RingState::find_taker(size_t gone, std::string& reasons) {
  const LayerRange layers = peers_[gone]->worker.layers;
  std::vector<const Peer*> candidates;
  auto add = [&](size_t index) {
    if (index >= peers_.size() || !peers_[index]->healthy) return;
    const auto& address = peers_[index]->worker.address;
    const bool there = std::any_of(candidates.begin(), candidates.end(),
                                   [&](const Peer* one) { return one->worker.address == address; });
    if (!there) candidates.push_back(peers_[index].get());
  };
  // Neighbours first: what they hand to themselves crosses no network.
  add(gone - 1);
  add(gone + 1);
  for (size_t i = 0; i < peers_.size(); ++i) add(i);
  model::StageOptions stage = options_.local;
  stage.first_layer = layers.first;
  stage.last_layer = layers.last;
  const uint64_t need = model::stage_bytes(options_.config, stage) +
                        model::state_bytes(options_.config, layers.first, layers.last,
                                           options_.context, options_.local.kv);
  const PeerModel model = peer_model();
  for (const Peer* candidate : candidates) {
    auto peer = std::make_unique<Peer>(candidate->worker);
    peer->worker.layers = layers;
    peer->by_relay = candidate->by_relay;
    emit(Event::Kind::kLoading, peer->worker.label(), peer->name() + " loads these layers");
    Status status = peer->connect(model);
    const uint64_t available = peer->welcome.memory_available;
    if (status.ok() && available != 0 && available < need) {
      status = Error{ErrorKind::kMemory, "needs " + bytes_text(need) + ", and " +
                                             bytes_text(available) + " are available"};
    }
    if (status.ok()) status = peer->load(model);
    if (status.ok()) {
      peer->healthy = true;
      return peer;
    }
    if (status.error().kind == ErrorKind::kCancelled) return status.error();
    reasons += "; " + peer->blame(status.error()).message;
  }
  const uint64_t available = available_memory();
  if (available != 0 && available < need) {
    reasons += "; the host: needs " + bytes_text(need) + ", and " + bytes_text(available) +
               " are available";
    return Error{ErrorKind::kPeer,
                 peers_[gone]->why + "; nobody can take over its layers" + reasons};
  }
  return std::unique_ptr<Peer>();
}

// Without a plan: the layers of each who is gone go as they are to another worker, which keeps its
// own ones loaded, or to the host.
Status RingState::reassign() {
  give_up_ = false;
  for (size_t i = 0; i < peers_.size();) {
    const Peer& gone = *peers_[i];
    if (gone.healthy || gone.why.empty()) {
      ++i;
      continue;
    }
    const LayerRange layers = gone.worker.layers;
    std::string reasons;
    TANDEM_ASSIGN(auto taker, find_taker(i, reasons));
    if (taker != nullptr) {
      emit(Event::Kind::kReplanned, taker->worker.label(),
           "worker " + taker->worker.label() + " takes over layers " + text(layers));
      peers_[i++] = std::move(taker);
      continue;
    }
    emit(Event::Kind::kLoading, "host", "the host loads layers " + text(layers));
    emit(Event::Kind::kReplanned, "host", "the host takes over layers " + text(layers));
    peers_.erase(peers_.begin() + static_cast<ptrdiff_t>(i));
  }
  return {};
}

// Has `workers` as the ring's from now on. Who is there with the same layers stays loaded.
Status RingState::deal(const std::vector<RingWorker>& workers) {
  std::vector<LayerRange> ranges;
  ranges.reserve(workers.size());
  for (const RingWorker& worker : workers) ranges.push_back(worker.layers);
  if (const Status status = check_split(ranges, options_.config.layers); !status.ok()) {
    return status.error().in("the new plan");
  }
  std::vector<std::unique_ptr<Peer>> next;
  auto take = [&](std::vector<std::unique_ptr<Peer>>& pool, const RingWorker& worker) {
    const auto held = std::find_if(pool.begin(), pool.end(), [&](const auto& peer) {
      return peer != nullptr && peer->healthy && peer->worker.address == worker.address &&
             peer->worker.layers == worker.layers &&
             (!worker.pin || *worker.pin == peer->fingerprint);
    });
    if (held == pool.end()) return false;
    next.push_back(std::move(*held));
    return true;
  };
  for (const RingWorker& worker : workers) {
    if (take(peers_, worker) || take(spares_, worker)) continue;
    next.push_back(std::make_unique<Peer>(worker));
    emit(Event::Kind::kLoading, worker.label(), next.back()->name() + " loads these layers");
  }
  // Before the others load: their memory may be what these take.
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->leave();
  }
  std::erase(spares_, nullptr);
  if (options_.choose_spares) drop_spares();
  peers_ = std::move(next);
  return {};
}

}  // namespace tandem::ring
