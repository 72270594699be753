// The ways back of a ring: rollback, checkpoints, reset, and what a cancelled lap leaves.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "kernels/recurrent.h"
#include "ring/host_state.h"

namespace tandem::ring {

size_t RingState::stage_count() const {
  size_t stages = 0;
  for (const Station* station : stations_) stages += std::max<size_t>(station->peers.size(), 1);
  return stages;
}

Status RingState::restore_own(uint32_t slot, const Mark& mark) {
  for (const auto& station : own_) TANDEM_TRY(station->sequence->restore(slot, mark.length));
  length_ = mark.length;
  floor_ = mark.floor;
  std::erase_if(marks_, [&](const auto& entry) { return entry.second.length > length_; });
  return {};
}

// Everything, here and with the next frame on the workers.
Status RingState::forget() {
  for (const auto& station : own_) TANDEM_TRY(station->sequence->rollback(0));
  marks_.clear();
  length_ = floor_ = window_floor_ = 0;
  pending_ = wire::Control::kReset;
  pending_length_ = 0;
  return {};
}

// After a lap of recurrent layers that was cancelled anywhere on its way.
Status RingState::recover(uint32_t position, uint32_t tokens) {
  if (tokens <= batch_ && tokens <= kernels::kRollbackWindow) {
    // A single frame: whoever ran it can take it back, and whoever did not is there still.
    for (const auto& station : own_) TANDEM_TRY(station->sequence->rollback(position));
    floor_ = position;
    // What was pending may not have come that far. A restore leads to the same place.
    if (pending_ == wire::Control::kRestore) return {};
    if (pending_ != wire::Control::kReset) pending_ = wire::Control::kRollback;
    pending_length_ = position;
    return {};
  }
  auto nearest = marks_.end();
  for (auto mark = marks_.begin(); mark != marks_.end(); ++mark) {
    if (mark->second.length > position) continue;
    if (nearest == marks_.end() || mark->second.length > nearest->second.length) nearest = mark;
  }
  if (nearest == marks_.end()) return forget();
  pending_ = wire::Control::kRestore;
  pending_length_ = nearest->first;
  const Mark mark = nearest->second;
  return restore_own(nearest->first, mark);
}

// Tells the workers what they are still to be told.
Status RingState::flush() {
  if (pending_ == wire::Control::kNone) return {};
  TANDEM_TRY(lap({}, length_, 0, pending_, pending_length_));
  pending_ = wire::Control::kNone;
  return {};
}

Status RingState::rollback(uint32_t length) {
  TANDEM_TRY(alive());
  if (length > length_) {
    return invalid("asked to roll back to " + std::to_string(length) +
                   " positions, the ring holds " + std::to_string(length_));
  }
  if (length == length_) return {};
  if (length != 0 && length < floor_) {
    return invalid("recurrent layers can't roll back from " + std::to_string(length_) + " to " +
                   std::to_string(length) + " positions, only to " + std::to_string(floor_) +
                   " and on, or to a checkpoint");
  }
  if (length != 0 && length < window_floor_) {
    return invalid("layers with a sliding window can't roll back from " + std::to_string(length_) +
                   " to " + std::to_string(length) + " positions, only to " +
                   std::to_string(window_floor_) + " and on");
  }
  if (pending_ == wire::Control::kRestore) TANDEM_TRY(flush());
  for (const auto& station : own_) TANDEM_TRY(station->sequence->rollback(length));
  std::erase_if(marks_, [&](const auto& mark) { return mark.second.length > length; });
  length_ = length;
  floor_ = std::min(floor_, length);
  if (length == 0) window_floor_ = 0;
  // What was to be rolled back before is rolled back by this as well; a reset stays one.
  if (pending_ != wire::Control::kReset) pending_ = wire::Control::kRollback;
  pending_length_ = length;
  return {};
}

Result<uint32_t> RingState::go_back(uint32_t length) {
  if (length >= length_) return length_;
  if (length >= std::max(floor_, window_floor_)) {
    TANDEM_TRY(rollback(length));
    return length_;
  }
  uint32_t reached = 0;
  uint32_t slot = 0;
  for (const auto& [number, mark] : marks_) {
    const uint32_t reach = mark.floor <= length ? std::min(mark.length, length) : 0;
    if (reach <= reached || reach < window_floor_) continue;
    reached = reach;
    slot = number;
  }
  if (reached != 0) TANDEM_TRY(mark(wire::Control::kRestore, slot));
  TANDEM_TRY(rollback(reached));
  return length_;
}

Status RingState::keep() {
  if (!recurrent_ || length_ == 0) return {};
  std::vector<std::pair<uint32_t, uint32_t>> held;  // length, slot
  for (const auto& [slot, mark] : marks_) {
    if (mark.length == length_) return {};
    held.emplace_back(mark.length, slot);
  }
  std::sort(held.begin(), held.end());
  const uint32_t limit = model::checkpoint_limit(options_.config);
  uint32_t slot = 0;
  if (held.size() < limit) {
    while (marks_.contains(slot)) ++slot;
  } else {
    // The one whose neighbours lie closest together; all lengths are below the present one.
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < held.size(); ++i) {
      const uint64_t before = i == 0 ? 0 : held[i - 1].first;
      const uint64_t after = i + 1 == held.size() ? length_ : held[i + 1].first;
      if (after - before >= least) continue;
      least = after - before;
      slot = held[i].second;
    }
  }
  return mark(wire::Control::kSave, slot);
}

Result<std::vector<std::byte>> RingState::write_state() const {
  TANDEM_TRY(alive());
  if (!peers_.empty() || own_.size() != 1) {
    return unsupported("a conversation whose layers lie on workers can't be kept on disk yet");
  }
  return own_.front()->sequence->write();
}

Status RingState::read_state(std::span<const std::byte> bytes) {
  TANDEM_TRY(reset());
  if (!peers_.empty() || own_.size() != 1) {
    return unsupported("a conversation whose layers lie on workers can't come from disk yet");
  }
  model::Sequence& sequence = *own_.front()->sequence;
  TANDEM_TRY(sequence.read(bytes));
  if (sequence.length() > options_.context) {
    const uint32_t length = sequence.length();
    TANDEM_TRY(sequence.rollback(0));
    return invalid("a state of " + std::to_string(length) + " positions, the context has " +
                   std::to_string(options_.context));
  }
  length_ = sequence.length();
  floor_ = sequence.floor();
  for (const auto& checkpoint : sequence.checkpoints()) {
    marks_[checkpoint.slot] = {checkpoint.length, checkpoint.floor};
  }
  // A pending reset is for workers, of which there are none.
  pending_ = wire::Control::kNone;
  return {};
}

Status RingState::mark(wire::Control control, uint32_t slot) {
  TANDEM_TRY(alive());
  const uint32_t limit = model::checkpoint_limit(options_.config);
  if (control == wire::Control::kSave) {
    if (marks_.size() >= limit && !marks_.contains(slot)) {
      return invalid("more than " + std::to_string(limit) + " checkpoints");
    }
  } else if (!marks_.contains(slot)) {
    return invalid("no checkpoint " + std::to_string(slot));
  } else if (control == wire::Control::kRestore && marks_[slot].length < window_floor_) {
    return invalid("checkpoint " + std::to_string(slot) + " of " +
                   std::to_string(marks_[slot].length) +
                   " positions is out of the reach of layers with a sliding window");
  }
  // What is pending comes first: it may change the length that is to be saved.
  TANDEM_TRY(flush());
  TANDEM_TRY(lap({}, length_, 0, control, slot));
  if (control == wire::Control::kSave) {
    for (const auto& station : own_) TANDEM_TRY(station->sequence->save(slot));
    marks_[slot] = {length_, floor_};
  } else if (control == wire::Control::kDrop) {
    for (const auto& station : own_) station->sequence->drop(slot);
    marks_.erase(slot);
  } else {
    const Mark mark = marks_[slot];
    TANDEM_TRY(restore_own(slot, mark));
  }
  return {};
}

Status RingState::reset() {
  if (alive().ok() && !wants_replan()) return forget();
  return options_.survive ? repair() : establish();
}

}  // namespace tandem::ring
