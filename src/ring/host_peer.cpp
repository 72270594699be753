#include "ring/host_peer.h"

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

constexpr auto kLinkConnectTimeout = 5s;
// A worker reports its progress every 0.25 s while it loads, whatever it waits for.
constexpr auto kLoadSilence = 15s;
constexpr auto kAnswerTimeout = 5s;
// A worker gives another one 5 s to be reached, and 3 s to let it in.
constexpr auto kDialTimeout = 9s;
constexpr auto kMeasureTimeout = 60s;
constexpr auto kLinkTimeout = 20s;
constexpr uint32_t kMaxAnswer = 4096;

/// Greets whoever listens on a fresh connection; errors are the refusal's.
Result<wire::Welcome> greet(wire::Connection& connection, wire::Role role, const wire::Key& key,
                            std::chrono::milliseconds timeout) {
  const auto deadline = wire::Clock::now() + timeout;
  wire::Hello hello;
  hello.contract = contract_version();
  hello.role = role;
  hello.key = key;
  hello.software = software_version();
  TANDEM_TRY(connection.send_until(deadline, {.type = wire::Type::kHello}, hello.encode()));
  TANDEM_ASSIGN(const wire::Header answer, connection.receive_until(deadline, kMaxAnswer));
  if (answer.type == wire::Type::kRefusal) {
    TANDEM_ASSIGN(wire::Refusal refusal, wire::Refusal::decode(connection.payload()));
    return Error{refusal.kind, "refused: " + refusal.reason};
  }
  if (answer.type != wire::Type::kWelcome) {
    return invalid("answered the hello with a " + std::string(wire::name(answer.type)) + " frame");
  }
  TANDEM_ASSIGN(const wire::Welcome welcome, wire::Welcome::decode(connection.payload()));
  if (welcome.protocol != wire::kProtocolVersion || welcome.contract != contract_version()) {
    return unsupported("has protocol version " + std::to_string(welcome.protocol) +
                       " and arithmetic contract version " + std::to_string(welcome.contract) +
                       ", this host has " + std::to_string(wire::kProtocolVersion) + " and " +
                       std::to_string(contract_version()));
  }
  return welcome;
}

}  // namespace

std::string Peer::name() const {
  return "worker " + worker.label() + " (layers " + text(worker.layers) + ")";
}

Error Peer::blame(const Error& error) const {
  const auto kind = error.kind == ErrorKind::kCancelled ? error.kind : ErrorKind::kPeer;
  return Error{kind, error.message}.in(name());
}

Result<wire::Header> Peer::next(std::chrono::milliseconds silence, const PeerModel* model) {
  const auto deadline = wire::Clock::now() + silence;
  auto stopped = [](const std::atomic<bool>* flag) { return flag != nullptr && *flag; };
  while (!wire::wait_for(control->fd(), false, std::min(deadline, wire::Clock::now() + 100ms))) {
    if (model != nullptr && (stopped(model->cancel) || stopped(model->give_up))) {
      return Error{ErrorKind::kCancelled, "stopped"};
    }
    if (wire::Clock::now() >= deadline) {
      return Error{ErrorKind::kPeer, "silent for " + std::to_string(silence / 1000ms) + " s"};
    }
  }
  return control->receive_until(deadline, kMaxAnswer);
}

Status Peer::open(const PeerModel& model) {
  Status status = connect(model);
  if (status.ok()) status = load(model);
  if (!status.ok()) {
    control.reset();
    return blame(status.error());
  }
  healthy = true;
  why.clear();
  return {};
}

Status Peer::open_until(const PeerModel& model, wire::Clock::time_point deadline,
                        const std::function<bool()>& wanted) {
  constexpr auto kBetween = 200ms;
  PeerModel hasty = model;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - wire::Clock::now());
    hasty.connect_timeout = std::max(left, 100ms);
    Status status = open(hasty);
    if (status.ok() || status.error().kind == ErrorKind::kCancelled) return status;
    if (wire::Clock::now() + kBetween >= deadline) return status;
    if (!wanted()) return Error{ErrorKind::kCancelled, "stopped"};
    std::this_thread::sleep_for(kBetween);
  }
}

void Peer::fail(const Error& error) {
  healthy = false;
  why = error.message;
}

void Peer::leave() {
  // One that can't be told is gone already.
  if (control != nullptr) (void)control->send({.type = wire::Type::kBye}).ok();
  control.reset();
  healthy = false;
}

Result<std::unique_ptr<wire::Connection>> Peer::dial_worker(
    std::chrono::milliseconds timeout) const {
  const std::string& where = by_relay ? worker.relay : worker.address;
  TANDEM_ASSIGN(wire::Socket socket,
                dialler_ ? dialler_(where, timeout) : wire::dial_tcp(where, timeout));
  // Links go to the device that the control connection goes to.
  const auto pin = fingerprint == wire::Fingerprint{} ? worker.pin : std::optional(fingerprint);
  auto connection = std::make_unique<wire::Connection>(
      std::move(socket), tls_ == nullptr ? nullptr : tls_->connecting(pin));
  TANDEM_TRY(connection->secure_until(wire::Clock::now() + timeout));
  return connection;
}

Status Peer::connect(const PeerModel& model) {
  healthy = frozen = false;
  control.reset();
  model.progress({worker.label(), worker.layers, LoadEvent::Phase::kConnecting, 0, 0});
  tls_ = model.tls;
  dialler_ = model.dialler;
  if (tls_ == nullptr && worker.pin) return invalid("a fingerprint was given, and no room's key");
  fingerprint = {};
  TANDEM_ASSIGN(control, dial_worker(model.connect_timeout));
  if (control->channel() != nullptr) {
    fingerprint = control->channel()->peer();
    code = control->channel()->code();
  }
  TANDEM_ASSIGN(welcome, greet(*control, wire::Role::kHost, {}, model.connect_timeout));
  return {};
}

Status Peer::load(const PeerModel& model) {
  Status loaded = load_layers(model);
  given_ = {};
  return loaded;
}

Status Peer::load_layers(const PeerModel& model) {
  wire::Load request = model.load;
  request.first_layer = worker.layers.first;
  request.last_layer = worker.layers.last;
  TANDEM_TRY(control->send_until(wire::Clock::now() + kLoadSilence, {.type = wire::Type::kLoad},
                                 request.encode()));
  for (;;) {
    TANDEM_ASSIGN(const wire::Header header, next(kLoadSilence, &model));
    switch (header.type) {
      case wire::Type::kProgress: {
        TANDEM_ASSIGN(const wire::Progress progress, wire::Progress::decode(control->payload()));
        const auto phase =
            progress.phase == wire::LoadPhase::kWaiting
                ? LoadEvent::Phase::kWaiting
                : (progress.phase == wire::LoadPhase::kSearching ? LoadEvent::Phase::kSearching
                                                                 : LoadEvent::Phase::kLoading);
        model.progress({worker.label(), worker.layers, phase, progress.done, progress.total});
        break;
      }
      case wire::Type::kNeedTensor: {
        TANDEM_ASSIGN(const auto tensor, wire::decode_tensor_name(control->payload()));
        TANDEM_TRY(give_tensor(model, tensor));
        break;
      }
      case wire::Type::kNeedRange: {
        TANDEM_ASSIGN(const auto range, wire::NeedRange::decode(control->payload()));
        TANDEM_TRY(give_range(model, range));
        break;
      }
      case wire::Type::kReady: {
        TANDEM_ASSIGN(ready, wire::Ready::decode(control->payload()));
        model.progress({worker.label(), worker.layers, LoadEvent::Phase::kReady, ready.weight_bytes,
                        ready.weight_bytes});
        return {};
      }
      case wire::Type::kRefusal: {
        TANDEM_ASSIGN(wire::Refusal refusal, wire::Refusal::decode(control->payload()));
        return Error{refusal.kind, "refused: " + refusal.reason};
      }
      default:
        return invalid("sent a " + std::string(wire::name(header.type)) + " frame while loading");
    }
  }
}

Result<weights::TensorData> Peer::tensor_for(const PeerModel& model, std::string_view name) const {
  const auto tensors = model::layer_tensors(*model.config, worker.layers.first, worker.layers.last);
  const bool its_own = std::any_of(tensors.begin(), tensors.end(),
                                   [&](const auto& tensor) { return tensor.name == name; });
  if (!its_own) return invalid("tensor " + std::string(name) + " is not of your layers");
  return model.source->read(name);
}

Status Peer::give_tensor(const PeerModel& model, std::string_view name) {
  const auto data = tensor_for(model, name);
  return data.ok() ? give_bytes(data->bytes) : decline(data.error());
}

Status Peer::give_range(const PeerModel& model, const wire::NeedRange& range) {
  if (range.model_hash != model.load.model_hash) {
    return decline(invalid("a range of another model than the one that is loaded"));
  }
  // Ranges of a tensor come one after the other, and some have to be converted as a whole.
  if (given_.info.name != range.tensor) {
    given_ = {};
    auto data = tensor_for(model, range.tensor);
    if (!data.ok()) return decline(data.error());
    given_ = std::move(*data);
  }
  const uint64_t size = given_.bytes.size();
  if (range.offset > size || range.length > size - range.offset) {
    return decline(invalid("bytes " + std::to_string(range.offset) + " to " +
                           std::to_string(range.offset + range.length) + " of tensor " +
                           given_.info.name + ", which has " + std::to_string(size)));
  }
  TANDEM_TRY(give_bytes(given_.bytes.subspan(static_cast<size_t>(range.offset), range.length)));
  if (given_.release) given_.release(range.offset, range.length);
  return {};
}

Status Peer::decline(const Error& error) {
  return control->send_until(wire::Clock::now() + kLoadSilence, {.type = wire::Type::kRefusal},
                             wire::Refusal{error.kind, error.message}.encode());
}

Status Peer::give_bytes(std::span<const std::byte> bytes) {
  for (auto rest = bytes; !rest.empty();) {
    const auto chunk = rest.first(std::min<size_t>(rest.size(), wire::kMaxChunkBytes));
    TANDEM_TRY(control->send_until(wire::Clock::now() + kLoadSilence,
                                   {.type = wire::Type::kTensorChunk}, chunk));
    rest = rest.subspan(chunk.size());
  }
  return {};
}

Status Peer::expect(wire::Type type, std::chrono::milliseconds timeout, bool& refused) {
  const auto deadline = wire::Clock::now() + timeout;
  refused = false;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - wire::Clock::now());
    TANDEM_ASSIGN(const wire::Header header, next(std::max(left, 1ms), nullptr));
    if (header.type == type) return {};
    switch (header.type) {
      case wire::Type::kPong:
      case wire::Type::kTrouble:
      case wire::Type::kDialed:
        break;  // of an activation that has ended
      case wire::Type::kRefusal: {
        TANDEM_ASSIGN(wire::Refusal refusal, wire::Refusal::decode(control->payload()));
        refused = true;
        return Error{refusal.kind, "refused: " + refusal.reason};
      }
      default:
        return invalid("sent an unexpected " + std::string(wire::name(header.type)) + " frame");
    }
  }
}

Status Peer::send_activate(const wire::Activate& activate) {
  return control->send_until(wire::Clock::now() + kAnswerTimeout, {.type = wire::Type::kActivate},
                             activate.encode());
}

Status Peer::await_activated() {
  bool refused = false;
  return expect(wire::Type::kActivated, kAnswerTimeout, refused);
}

Status Peer::dial(const wire::Dial& request, bool& refused) {
  refused = false;
  TANDEM_TRY(control->send_until(wire::Clock::now() + kAnswerTimeout, {.type = wire::Type::kDial},
                                 request.encode()));
  return expect(wire::Type::kDialed, kDialTimeout, refused);
}

Status Peer::send_measure(const wire::Measure& measure) {
  return control->send_until(wire::Clock::now() + kAnswerTimeout, {.type = wire::Type::kMeasure},
                             measure.encode());
}

Result<wire::Measured> Peer::await_measured(const wire::Measure& measure) {
  bool refused = false;
  // Passes that take minutes are not worth a place in a ring.
  TANDEM_TRY(expect(wire::Type::kMeasured,
                    kMeasureTimeout + std::chrono::milliseconds(2 * measure.budget_ms) *
                                          static_cast<int>(measure.widths.size()),
                    refused));
  TANDEM_ASSIGN(wire::Measured measured, wire::Measured::decode(control->payload()));
  const bool all = std::equal(measured.widths.begin(), measured.widths.end(),
                              measure.widths.begin(), measure.widths.end(),
                              [](const auto& got, uint32_t asked) { return got.width == asked; });
  if (!all) return invalid("measured other widths than it was asked for");
  return measured;
}

Result<wire::LinkTested> Peer::test_link(const wire::TestLink& test, bool& refused) {
  refused = false;
  TANDEM_TRY(control->send_until(wire::Clock::now() + kAnswerTimeout,
                                 {.type = wire::Type::kTestLink}, test.encode()));
  TANDEM_TRY(expect(wire::Type::kLinkTested, kLinkTimeout, refused));
  return wire::LinkTested::decode(control->payload());
}

Result<std::unique_ptr<wire::Connection>> Peer::link(wire::Role role, const wire::Key& key) const {
  auto attempt = [&]() -> Result<std::unique_ptr<wire::Connection>> {
    TANDEM_ASSIGN(auto connection, dial_worker(kLinkConnectTimeout));
    TANDEM_TRY(greet(*connection, role, key, kLinkConnectTimeout));
    return connection;
  };
  auto connection = attempt();
  if (!connection.ok()) return blame(connection.error());
  return connection;
}

}  // namespace tandem::ring
