// Spares that the ring's user chooses (RingOptions::choose_spares): they load beside the answers.
#include <algorithm>
#include <utility>

#include "ring/host_state.h"

namespace tandem::ring {

/// Asks who is to stand by, lets the others go, and has those load who don't hold these layers.
void RingState::choose_spares() {
  if (!options_.choose_spares || peers_.empty()) return;
  choose_again_ = false;
  take_arrivals();
  // Waiting for them may take as long as loading does.
  choose_again_ = !arrivals_.empty();
  if (choose_again_) return;
  std::vector<RingWorker> workers;
  workers.reserve(peers_.size());
  for (const auto& peer : peers_) workers.push_back(peer->worker);
  std::vector<std::unique_ptr<Peer>> before = std::exchange(spares_, {});
  for (const RingWorker& wanted : options_.choose_spares(workers)) {
    if (!check_split({wanted.layers}, options_.config.layers).ok()) continue;
    const auto held = std::find_if(before.begin(), before.end(), [&](const auto& spare) {
      return spare != nullptr && spare->healthy && spare->worker.address == wanted.address &&
             spare->worker.layers == wanted.layers;
    });
    if (held != before.end()) {
      spares_.push_back(std::move(*held));
    } else {
      arrivals_.push_back({std::make_unique<Peer>(wanted), {}, false});
    }
  }
  // The monitor has to let go of those first; that it begins anew costs nothing.
  const bool some_leave =
      std::any_of(before.begin(), before.end(), [](const auto& spare) { return spare != nullptr; });
  if (some_leave) watch();
  for (const auto& spare : before) {
    if (spare != nullptr) spare->leave();
  }
  if (arrivals_.empty()) return;
  spares_give_up_ = false;
  spare_loader_ = std::thread([this] { load_spares(); });
}

/// One after the other: an answer is under way, and they may need the host's tensors.
void RingState::load_spares() {
  PeerModel model = peer_model();
  model.give_up = &spares_give_up_;
  model.progress = [progress = model.progress](LoadEvent event) {
    event.spare = true;
    progress(event);
  };
  for (Arrival& arrival : arrivals_) {
    Status status =
        spares_give_up_ ? Error{ErrorKind::kCancelled, "stopped"} : arrival.peer->open(model);
    {
      const std::lock_guard lock(arrivals_mutex_);
      arrival.status = std::move(status);
      arrival.done = true;
    }
    arrived_ = true;
  }
}

/// Takes in the spares that have loaded since.
void RingState::take_arrivals() {
  if (!arrived_.exchange(false)) return;
  const auto taken = [&](Arrival& arrival) {
    const std::lock_guard lock(arrivals_mutex_);
    return arrival.done;
  };
  bool all = true;
  for (Arrival& arrival : arrivals_) {
    if (arrival.peer == nullptr) continue;
    if (!taken(arrival)) {
      all = false;
      continue;
    }
    Peer& peer = *arrival.peer;
    if (arrival.status.ok()) {
      emit(Event::Kind::kStandby, peer.worker.label(), peer.name() + " stands by");
      if (monitor_ != nullptr) monitor_->watch(&peer);
      spares_.push_back(std::move(arrival.peer));
      continue;
    }
    if (arrival.status.error().kind != ErrorKind::kCancelled) {
      emit(Event::Kind::kLost, peer.worker.label(), "spare " + arrival.status.error().message);
    }
    arrival.peer.reset();
  }
  if (!all) return;
  if (spare_loader_.joinable()) spare_loader_.join();
  arrivals_.clear();
  if (choose_again_ && !repairing_) choose_spares();
}

/// Ends all loading, and lets all spares go.
void RingState::drop_spares() {
  spares_give_up_ = true;
  if (spare_loader_.joinable()) spare_loader_.join();
  for (const Arrival& arrival : arrivals_) {
    if (arrival.peer != nullptr) arrival.peer->leave();
  }
  arrivals_.clear();
  arrived_ = false;
  choose_again_ = false;
  if (options_.choose_spares) {
    for (const auto& spare : spares_) spare->leave();
    spares_.clear();
  }
}

}  // namespace tandem::ring
