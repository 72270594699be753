// What a ring says of itself, to its metrics and its event log.
#include <chrono>

#include "ring/host_state.h"

namespace tandem::ring {
namespace {

double ms_since(wire::Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(wire::Clock::now() - start).count();
}

}  // namespace

void RingState::report_lap(uint32_t tokens, wire::Clock::time_point start,
                           const Result<model::HiddenStates>& result) {
  const double ms = ms_since(start);
  const bool failed = !result.ok() && result.error().kind != ErrorKind::kCancelled;
  if (failed) {
    options_.events.write("failed", "", {{"reason", result.error().message}, {"ms", ms}});
  }
  if (options_.metrics == nullptr) return;
  HostMetrics& metrics = *options_.metrics;
  metrics.state.set(failed ? HostState::kFailed : HostState::kReady);
  if (failed) metrics.failures.add();
  if (!result.ok()) return;
  metrics.laps.add();
  metrics.tokens.add(tokens);
  metrics.lap_ms.add(ms);
  metrics.positions.set(length_ + tokens);
  // A hop's median is sorted for: no need of that after each lap.
  constexpr uint64_t kEvery = 16;
  if (metrics.laps.value() % kEvery != 1) return;
  for (const Station* station : stations_) {
    if (station->local()) {
      const std::string name = "host " + text(station->layers);
      metrics.stage("stage_pass_milliseconds", "Mean time of a pass of one token.", name)
          .set(station->totals.mean_ms_since({}));
      continue;
    }
    const std::string& name = station->peers.front()->worker.address;
    metrics.stage("hop_milliseconds", "Median time of a hop beyond computing.", name)
        .set(station->hop_ms.median());
    if (station->in != nullptr) {
      metrics.stage("link_bytes_out", "Bytes sent on the present link.", name)
          .set(static_cast<double>(station->in->bytes_out()));
    }
    if (station->out != nullptr) {
      metrics
          .stage("link_bytes_in", "Bytes received on the present link.",
                 station->peers.back()->worker.address)
          .set(static_cast<double>(station->out->bytes_in()));
    }
  }
}

void RingState::report_opening(wire::Clock::time_point start, const Status& status) {
  const double ms = ms_since(start);
  if (!status.ok()) {
    options_.events.write("opening_failed", "", {{"reason", status.error().message}, {"ms", ms}});
  } else {
    for (const auto& peer : peers_) {
      options_.events.write("worker_ready", peer->worker.address,
                            {{"first_layer", int64_t{peer->worker.layers.first}},
                             {"last_layer", int64_t{peer->worker.layers.last} - 1},
                             {"weight_bytes", static_cast<int64_t>(peer->ready.weight_bytes)},
                             {"kv_bytes", static_cast<int64_t>(peer->ready.kv_bytes)},
                             {"sent", static_cast<int64_t>(peer->ready.streamed)}});
    }
    options_.events.write("ring_ready", "",
                          {{"workers", static_cast<int64_t>(peers_.size())}, {"ms", ms}});
  }
  if (options_.metrics == nullptr) return;
  HostMetrics& metrics = *options_.metrics;
  metrics.state.set(status.ok() ? HostState::kReady : HostState::kFailed);
  if (!status.ok()) return metrics.failures.add();
  metrics.openings.add();
  metrics.workers.set(static_cast<double>(peers_.size()));
  metrics.connections.set(static_cast<double>(peers_.size() + 2 * remote_.size()));
  for (const auto& peer : peers_) {
    const std::string& name = peer->worker.address;
    metrics.stage("stage_layers", "Layers of a stage.", name)
        .set(peer->worker.layers.last - peer->worker.layers.first);
    metrics.stage("stage_bytes", "Bytes of weights of a stage.", name)
        .set(static_cast<double>(peer->ready.weight_bytes));
  }
  for (const auto& station : own_) {
    const std::string name = "host " + text(station->layers);
    metrics.stage("stage_layers", "Layers of a stage.", name)
        .set(station->layers.last - station->layers.first);
    metrics.stage("stage_bytes", "Bytes of weights of a stage.", name)
        .set(static_cast<double>(station->stage->bytes()));
  }
}

}  // namespace tandem::ring
