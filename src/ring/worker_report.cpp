// What a worker says of itself: to hosts, to metrics and the event log.
#include <algorithm>
#include <chrono>

#include "ring/system_memory.h"
#include "ring/worker_engine.h"
#include "ring/worker_load.h"

namespace tandem::ring {

wire::Bytes WorkerEngine::welcome() const {
  wire::Welcome welcome;
  welcome.contract = contract_version();
  welcome.threads = options_.threads;
  const uint64_t limit = cache_.limit();
  welcome.memory_limit = limit;
  welcome.memory_available = available_memory();
  welcome.memory_free =
      limit == 0 ? welcome.memory_available : limit - std::min(limit, cache_.used());
  welcome.software = software_version();
  return welcome.encode();
}

wire::Bytes WorkerEngine::pong(const Session& session) const {
  wire::Pong pong;
  const auto pass = compute_->pass();
  pong.passes = compute_->passes();
  pong.received = session.received;
  pong.sent = session.sent;
  pong.bytes_in = session.bytes_in;
  pong.bytes_out = session.bytes_out;
  pong.stage_passes = session.stage_passes;
  pong.stage_us = session.stage_us;
  pong.single_passes = session.single_passes;
  pong.single_us = session.single_us;
  pong.pass_ms = pass.running_ms;
  pong.allowed_ms = pass.allowed_ms;
  pong.busy = pass.busy ? 1 : 0;
  return pong.encode();
}

void WorkerEngine::adopt(wire::Socket client) {
  constexpr size_t kMaxAdopted = 256;
  {
    const std::lock_guard lock(adopted_mutex_);
    if (adopted_.size() < kMaxAdopted) adopted_.push_back(std::move(client));
  }
  wake_.wake();
}

void WorkerEngine::load(const std::shared_ptr<Session>& session) {
  const auto start = wire::Clock::now();
  const int64_t first = session->request.first_layer;
  const int64_t last = int64_t{session->request.last_layer} - 1;
  options_.events.write("loading", session->peer, {{"first_layer", first}, {"last_layer", last}});
  ++loading_;
  load_session(*session, cache_, options_, library_ ? &*library_ : nullptr);
  --loading_;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(wire::Clock::now() - start);
  if (session->ready) {
    metrics_.loads.add();
    options_.events.write("loaded", session->peer,
                          {{"first_layer", first},
                           {"last_layer", last},
                           {"memory_used", static_cast<int64_t>(cache_.used())},
                           {"received", static_cast<int64_t>(session->streamed.load())},
                           {"ms", int64_t{ms.count()}}});
  } else {
    metrics_.refusals.add();
    options_.events.write("load_failed", session->peer, {{"ms", int64_t{ms.count()}}});
  }
}

void WorkerEngine::count_bytes(Session& session) {
  const uint64_t in = session.control->bytes_in();
  const uint64_t out = session.control->bytes_out();
  metrics_.bytes_in.add(in - session.counted_in);
  metrics_.bytes_out.add(out - session.counted_out);
  session.counted_in = in;
  session.counted_out = out;
}

std::string WorkerEngine::metrics() {
  metrics_.state.set(compute_->pass().busy ? WorkerState::kComputing
                     : loading_ > 0        ? WorkerState::kLoading
                     : session_count_ > 0  ? WorkerState::kReady
                                           : WorkerState::kIdle);
  metrics_.layers.set(static_cast<double>(cache_.layers()));
  metrics_.stages.set(static_cast<double>(cache_.stages()));
  metrics_.memory_used.set(static_cast<double>(cache_.used()));
  metrics_.memory_limit.set(static_cast<double>(cache_.limit()));
  metrics_.hosts_now.set(static_cast<double>(session_count_.load()));
  metrics_.uptime.set(std::chrono::duration<double>(wire::Clock::now() - started_).count());
  return metrics_.all.text();
}

}  // namespace tandem::ring
