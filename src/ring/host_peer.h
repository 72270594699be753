// One worker, as the host sees it: the connection that it is loaded and watched through.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ring/host.h"
#include "ring/recent.h"
#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::ring {

/// What all peers of a ring are told to load.
struct PeerModel {
  wire::Load load;  ///< without the layers
  const model::ModelConfig* config = nullptr;
  weights::TensorSource* source = nullptr;
  std::shared_ptr<const wire::Tls> tls;  ///< may be null
  wire::Dialler dialler;                 ///< empty: wire::dial_tcp
  std::function<void(const LoadEvent&)> progress;
  const std::atomic<bool>* cancel = nullptr;   ///< may be null
  const std::atomic<bool>* give_up = nullptr;  ///< another peer failed
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(5);
};

/// Used by one thread at a time: the opener, then the monitor (except send on `control`).
struct Peer {
  explicit Peer(RingWorker where) : worker(std::move(where)) {}

  RingWorker worker;
  std::unique_ptr<wire::Connection> control;
  bool healthy = false;  ///< connected, loaded, and not known to have failed
  bool frozen = false;   ///< it failed by being silent: it won't answer a new connection either
  std::string why;       ///< how it failed; empty: it did not, or was never opened
  wire::Welcome welcome;
  /// Of the device, once connected over TLS; zero without.
  wire::Fingerprint fingerprint{};
  std::string code;  ///< wire::TlsChannel::code()
  wire::Ready ready;
  // Neighbours that this worker is linked to directly; null if that is the host.
  Peer* upstream = nullptr;
  Peer* downstream = nullptr;
  bool relayed = false;        ///< its output goes through the host
  bool by_relay = false;       ///< the host reaches it by worker.relay
  bool next_by_relay = false;  ///< and it the next one, by that one's
  PassMeans pass_means;

  /// Not healthy any more, because of this.
  void fail(const Error& error);
  /// Tells the worker that it is not needed any more.
  void leave();

  /// "worker 127.0.0.1:4000 (layers 4-7)".
  [[nodiscard]] std::string name() const;
  /// The error as this worker's: kPeer unless it is kCancelled.
  [[nodiscard]] Error blame(const Error& error) const;

  /// Connects, greets, and has the stage loaded. The errors are blame()d.
  Status open(const PeerModel& model);
  /// open(), again and again until `deadline`; false in `wanted` ends it with kCancelled.
  Status open_until(const PeerModel& model, wire::Clock::time_point deadline,
                    const std::function<bool()>& wanted);
  /// The first two of open()'s steps alone, and the third.
  Status connect(const PeerModel& model);
  Status load(const PeerModel& model);
  Status send_activate(const wire::Activate& activate);
  Status await_activated();
  /// Has the worker connect to the next stage. An error with `refused` means that it can't, and
  /// that the connection to it is good.
  Status dial(const wire::Dial& dial, bool& refused);
  /// Has the worker time passes of its stage, which must not be active.
  Status send_measure(const wire::Measure& measure);
  Result<wire::Measured> await_measured(const wire::Measure& measure);
  /// Has the worker measure the way to another one. `refused` as in dial().
  Result<wire::LinkTested> test_link(const wire::TestLink& test, bool& refused);
  /// Connects to the stage's link in or out.
  Result<std::unique_ptr<wire::Connection>> link(wire::Role role, const wire::Key& key) const;

 private:
  Result<std::unique_ptr<wire::Connection>> dial_worker(std::chrono::milliseconds timeout) const;
  std::shared_ptr<const wire::Tls> tls_;  ///< of the last connect(), like the dialler
  wire::Dialler dialler_;
  Status load_layers(const PeerModel& model);
  /// A tensor of the layers that this worker was asked to load.
  Result<weights::TensorData> tensor_for(const PeerModel& model, std::string_view name) const;
  Status give_tensor(const PeerModel& model, std::string_view name);
  Status give_range(const PeerModel& model, const wire::NeedRange& range);
  Status give_bytes(std::span<const std::byte> bytes);
  Status decline(const Error& error);
  weights::TensorData given_;  ///< the tensor that a range was last given of
  Result<wire::Header> next(std::chrono::milliseconds silence, const PeerModel* model);
  Status expect(wire::Type type, std::chrono::milliseconds timeout, bool& refused);
};

}  // namespace tandem::ring
