#include "ring/host.h"

#include <algorithm>
#include <utility>

#include "ring/host_state.h"

namespace tandem::ring {

Result<std::unique_ptr<Ring>> Ring::open(RingOptions options) {
  auto state = std::make_unique<RingState>(std::move(options));
  TANDEM_TRY(state->open());
  return std::unique_ptr<Ring>(new Ring(std::move(state)));
}

Ring::Ring(std::unique_ptr<RingState> state) : state_(std::move(state)) {}
Ring::~Ring() = default;

Result<model::HiddenStates> Ring::forward(model::HiddenStates hidden, uint32_t position,
                                          uint32_t want) {
  return state_->forward(std::move(hidden), position, want);
}
Status Ring::rollback(uint32_t length) {
  return state_->rollback(length);
}
Result<uint32_t> Ring::go_back(uint32_t length) {
  return state_->go_back(length);
}
Status Ring::keep() {
  return state_->keep();
}
bool Ring::recurrent() const {
  return state_->recurrent();
}
size_t Ring::stage_count() const {
  return state_->stage_count();
}
Result<std::vector<std::byte>> Ring::write_state() const {
  return state_->write_state();
}
Status Ring::read_state(std::span<const std::byte> bytes) {
  return state_->read_state(bytes);
}
Status Ring::reset() {
  return state_->reset();
}
bool Ring::survives() const {
  return state_->survives();
}
bool Ring::wants_replan() const {
  return state_->wants_replan();
}
void Ring::listen(Listener listener) {
  state_->listen(std::move(listener));
}
uint32_t Ring::length() const {
  return state_->length();
}
Status Ring::save(uint32_t slot) {
  return state_->mark(wire::Control::kSave, slot);
}
Status Ring::restore(uint32_t slot) {
  return state_->mark(wire::Control::kRestore, slot);
}
Status Ring::drop(uint32_t slot) {
  return state_->mark(wire::Control::kDrop, slot);
}
std::vector<StageReport> Ring::stages() {
  return state_->stages();
}

void RingState::listen(Listener listener) {
  listener_ = std::move(listener);
  hand_out();
}

void RingState::emit(Event::Kind kind, const std::string& peer, const std::string& text) {
  untold_.push_back({kind, peer, text});
  hand_out();
}

void RingState::collect() {
  if (monitor_ == nullptr || !monitor_->events()) return;
  for (Event& event : monitor_->take_events()) {
    for (const auto& peer : peers_) {
      const bool slow = event.kind == Event::Kind::kSlow && peer->worker.label() == event.peer;
      if (slow) slow_ = peer->worker.address;
    }
    untold_.push_back(std::move(event));
  }
  hand_out();
}

void RingState::hand_out() {
  if (!listener_) return;
  for (const Event& event : std::exchange(untold_, {})) listener_(event);
}

Status RingState::alive() const {
  if (failure_) return *failure_;
  if (monitor_ != nullptr && monitor_->failed()) return *monitor_->failure();
  return {};
}

void RingState::fence() {
  wire::Header header;
  header.type = wire::Type::kFence;
  header.lap = lap_;
  for (const auto& peer : peers_) {
    // A peer that can't be told is found by the monitor.
    if (peer->control != nullptr) (void)peer->control->send(header).ok();
  }
}

Result<model::HiddenStates> RingState::lap(model::HiddenStates hidden, uint32_t position,
                                           uint32_t want, wire::Control control,
                                           uint32_t argument) {
  LapOptions options;
  options.number = ++lap_;
  options.position = position;
  options.want = want;
  options.control = control;
  options.argument = argument;
  options.batch = options_.batch;
  if (options.batch == 0) {
    size_t stages = 0;
    for (const Station* station : stations_) {
      stages += std::max<size_t>(station->peers.size(), 1);
    }
    options.batch = frame_tokens(hidden.tokens(), static_cast<uint32_t>(stages));
    // Each expert sees a part of the tokens, and is read for them all the same.
    const model::ExpertConfig& moe = options_.config.moe;
    if (stages <= 1 && moe.experts != 0) {
      options.batch = std::min(kMostTokensOfExperts, options.batch * moe.experts / moe.chosen);
    }
  }
  if (recurrent_ && hidden.tokens() > options.batch) {
    // Frames of one size, since the last one's positions are those that can be rolled back.
    const uint32_t frames = (hidden.tokens() + options.batch - 1) / options.batch;
    options.batch = (hidden.tokens() + frames - 1) / frames;
  }
  batch_ = options.batch;
  options.in_flight = options_.in_flight;
  options.width = options_.config.hidden_size;
  // A lap of control only is short, and half of one would leave the stages apart.
  options.cancel = hidden.tokens() > 0 ? options_.cancel : nullptr;
  const uint32_t tokens = hidden.tokens();
  const auto start = wire::Clock::now();
  if (options_.metrics != nullptr) options_.metrics->state.set(HostState::kComputing);
  if (options_.survive) options.on_events = [this] { collect(); };
  monitor_->begin();
  auto result = Lap(stations_, options, *monitor_, wake_).run(std::move(hidden));
  monitor_->end();
  if (!result.ok()) {
    fence();
    if (result.error().kind != ErrorKind::kCancelled) failure_ = result.error();
  }
  report_lap(tokens, start, result);
  return result;
}

Result<model::HiddenStates> RingState::forward(model::HiddenStates hidden, uint32_t position,
                                               uint32_t want) {
  take_arrivals();
  TANDEM_TRY(alive());
  const uint32_t tokens = hidden.tokens();
  const uint64_t width = options_.config.hidden_size;
  if (hidden.width != width || hidden.values.size() != tokens * width) {
    return invalid("hidden states of width " + std::to_string(hidden.width) + ", the model's is " +
                   std::to_string(width));
  }
  if (want > tokens) {
    return invalid("wants the last " + std::to_string(want) + " of " + std::to_string(tokens) +
                   " tokens");
  }
  if (position != length_) {
    return invalid("asked to continue at position " + std::to_string(position) +
                   ", the ring holds " + std::to_string(length_));
  }
  if (tokens > options_.context - position) {
    return invalid(std::to_string(tokens) + " tokens from position " + std::to_string(position) +
                   " pass the context of " + std::to_string(options_.context));
  }
  if (tokens == 0) return hidden;
  auto result = lap(std::move(hidden), position, want, pending_, pending_length_);
  if (result.ok()) {
    pending_ = wire::Control::kNone;
    length_ += tokens;
    const uint32_t last = (tokens - 1) % batch_ + 1;
    window_floor_ = std::max(window_floor_, model::window_floor(options_.config, length_ - last));
    if (recurrent_) {
      floor_ = length_ - std::min(last, kernels::kRollbackWindow);
    }
    return result;
  }
  if (result.error().kind == ErrorKind::kCancelled && recurrent_) {
    TANDEM_TRY(recover(position, tokens));
  } else if (result.error().kind == ErrorKind::kCancelled &&
             model::window_floor(options_.config, position + tokens) > position) {
    // Frames of the lap may have come so far that windows let go of what `position` needs.
    TANDEM_TRY(reset());
  } else if (result.error().kind == ErrorKind::kCancelled) {
    for (const auto& station : own_) {
      // Shorter if the lap had not come that far.
      if (station->sequence->length() > position) TANDEM_TRY(station->sequence->rollback(position));
    }
    // A worker may or may not have seen the lap's control, so it is repeated.
    if (pending_ != wire::Control::kReset) pending_ = wire::Control::kRollback;
    pending_length_ = position;
  }
  return result;
}

std::vector<StageReport> RingState::stages() {
  std::vector<wire::Pong> counters;
  if (monitor_ != nullptr) counters = monitor_->counters();
  std::vector<StageReport> reports;
  for (Station* station : stations_) {
    if (station->local()) {
      StageReport report;
      report.peer = "host";
      report.layers = station->layers;
      report.weight_bytes = station->stage->bytes();
      report.kv_bytes = station->sequence->bytes();
      report.ms_per_pass = station->pass_means.look(station->totals);
      reports.push_back(report);
      continue;
    }
    for (const Peer* peer : station->peers) {
      StageReport report;
      report.peer = peer->worker.label();
      report.layers = peer->worker.layers;
      report.weight_bytes = peer->ready.weight_bytes;
      report.kv_bytes = peer->ready.kv_bytes;
      report.load_bytes = peer->ready.streamed;
      report.hop_ms = station->hop_ms.median();
      report.relayed = peer->relayed;
      report.host_by_relay = peer->by_relay || peer->worker.address == peer->worker.relay;
      report.next_by_relay = peer->next_by_relay;
      for (size_t i = 0; i < counters.size(); ++i) {
        if (peers_[i].get() != peer) continue;
        const wire::Pong& pong = counters[i];
        report.ms_per_pass = peers_[i]->pass_means.look(
            {pong.stage_passes, pong.stage_us, pong.single_passes, pong.single_us});
        report.bytes_received = pong.bytes_in;
        report.bytes_sent = pong.bytes_out;
      }
      reports.push_back(report);
    }
  }
  return reports;
}

}  // namespace tandem::ring
