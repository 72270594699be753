// What a host counts of its ring. Shared with whoever serves it: the ring writes, any thread reads.
#pragma once

#include "observe/metrics.h"

namespace tandem::ring {

enum class HostState : uint8_t { kOpening, kReady, kComputing, kFailed };

struct HostMetrics {
  observe::Metrics all{"tandem_host_"};
  observe::Counter& laps = all.counter("laps_total", "Laps round the ring that ended well.");
  observe::Counter& tokens = all.counter("tokens_total", "Tokens that went round the ring.");
  observe::Counter& failures = all.counter("failures_total", "Laps and openings that failed.");
  observe::Counter& openings =
      all.counter("openings_total", "Times that the ring was put together.");
  observe::Histogram& lap_ms = all.histogram("lap_milliseconds", "Time of one lap.");
  observe::Gauge& workers = all.gauge("workers", "Workers of the ring.");
  observe::Gauge& connections = all.gauge("connections", "Connections to workers.");
  observe::Gauge& positions = all.gauge("positions", "Positions of the conversation held.");
  observe::States<HostState, 4> state{
      all, "1 for what the ring does now.", {"opening", "ready", "computing", "failed"}};

  /// Of one stage: `peer` is the worker's address, or "host".
  observe::Gauge& stage(const char* name, const char* help, const std::string& peer) {
    return all.gauge(name, help, observe::label_text("peer", peer));
  }
};

}  // namespace tandem::ring
