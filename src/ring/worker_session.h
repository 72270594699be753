// What the worker's threads share about one host that is connected. Three threads touch it: the IO
// thread (owns the connection's reading and the session's life), a loading thread, and the compute
// thread (owns the lane: links, sequences).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "model/config.h"
#include "ring/stage_cache.h"
#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::ring {

/// A tensor on its way from the host to the loading thread. The IO thread writes the bytes in
/// place; at most one tensor is under way.
struct TensorInbox {
  std::mutex mutex;  ///< guards the members
  std::condition_variable changed;
  std::shared_ptr<std::byte[]> buffer;
  uint64_t size = 0;
  uint64_t received = 0;
  Status failure;  ///< the host's refusal
};

struct Session {
  explicit Session(std::unique_ptr<wire::Connection> connection)
      : control(std::move(connection)), peer(control->peer()) {}

  std::unique_ptr<wire::Connection> control;
  const std::string peer;
  std::atomic<bool> gone{false};  ///< the host left; set by the IO thread

  // Loading. `loading` is cleared by the loading thread after it wrote what follows.
  std::atomic<bool> loading{false};
  std::atomic<bool> ready{false};
  std::atomic<uint8_t> phase{0};
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> total{0};
  std::atomic<uint64_t> streamed{0};
  TensorInbox inbox;
  wire::Load request;
  model::ModelConfig config;
  StageCache::Reservation kv;
  StageCache::Lease lease;
  std::atomic<bool> measuring{false};  ///< cleared by the compute thread

  // The ring. Keys are the IO thread's; counters are written by the compute thread.
  std::optional<wire::Key> in_key;  ///< until the link with it has come
  std::optional<wire::Key> out_key;
  bool activated = false;
  std::atomic<uint64_t> activation{0};
  std::atomic<uint64_t> fence{0};  ///< laps up to this one are void
  std::atomic<uint64_t> received{0};
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<uint64_t> stage_passes{0};
  std::atomic<uint64_t> stage_us{0};
  std::atomic<uint64_t> single_passes{0};
  std::atomic<uint64_t> single_us{0};

  std::mutex out_mutex;                   ///< guards out
  std::shared_ptr<wire::Connection> out;  ///< the link out, for the IO thread to flush

  /// Tells the host; a host that can't be told is found gone by the IO thread.
  void tell(wire::Type type, const wire::Bytes& payload = {}) {
    if (const Status sent_status = control->send({.type = type}, payload); !sent_status.ok()) {
      control->shutdown();
    }
  }
  void refuse(const Error& error) {
    tell(wire::Type::kRefusal, wire::Refusal{error.kind, error.message}.encode());
  }
};

}  // namespace tandem::ring
