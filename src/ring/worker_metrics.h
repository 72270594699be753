// What a worker counts of itself.
#pragma once

#include "observe/metrics.h"

namespace tandem::ring {

enum class WorkerState : uint8_t { kIdle, kLoading, kReady, kComputing };

/// Counters are written by all threads of a worker, gauges when the text is asked for.
struct WorkerMetrics {
  observe::Metrics all{"tandem_worker_"};
  observe::Counter& passes = all.counter("passes_total", "Passes of stages.");
  observe::Counter& tokens = all.counter("tokens_total", "Tokens that went through stages.");
  observe::Counter& bytes_in =
      all.counter("wire_bytes_in_total", "Bytes received from hosts and other workers.");
  observe::Counter& bytes_out =
      all.counter("wire_bytes_out_total", "Bytes sent to hosts and other workers.");
  observe::Counter& connections = all.counter("connections_total", "Connections taken.");
  observe::Counter& hosts = all.counter("hosts_total", "Hosts let in.");
  observe::Counter& refusals = all.counter("refusals_total", "Clients and requests refused.");
  observe::Counter& troubles =
      all.counter("troubles_total", "Failures of a stage or its links, told to the host.");
  observe::Counter& loads = all.counter("loads_total", "Stages made ready for a host.");
  observe::Histogram& pass_ms = all.histogram("pass_milliseconds", "Time of one pass of a stage.");
  observe::Gauge& layers = all.gauge("layers", "Layers held, used by a host or kept.");
  observe::Gauge& stages = all.gauge("stages", "Stages held.");
  observe::Gauge& memory_used =
      all.gauge("memory_used_bytes", "Bytes of weights and KV caches held.");
  observe::Gauge& memory_limit = all.gauge("memory_limit_bytes", "Most of them; 0: no limit.");
  observe::Gauge& hosts_now = all.gauge("hosts", "Hosts connected.");
  observe::States<WorkerState, 4> state{
      all, "1 for what the worker does now.", {"idle", "loading", "ready", "computing"}};
  observe::Gauge& uptime = all.gauge("uptime_seconds", "Seconds since the start.");
};

}  // namespace tandem::ring
