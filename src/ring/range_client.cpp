#include "ring/range_client.h"

#include <algorithm>

#include "ring/worker.h"
#include "wire/messages.h"

namespace tandem::ring {

Result<std::unique_ptr<RangeClient>> RangeClient::dial(const RangeClientOptions& options) {
  const auto deadline = wire::Clock::now() + options.connect;
  TANDEM_ASSIGN(wire::Socket socket, options.dialler
                                         ? options.dialler(options.address, options.connect)
                                         : wire::dial_tcp(options.address, options.connect));
  auto connection =
      std::make_unique<wire::Connection>(std::move(socket), options.tls->connecting(options.pin));
  TANDEM_TRY(connection->secure_until(deadline));
  wire::Hello hello;
  hello.contract = contract_version();
  hello.role = wire::Role::kSource;
  hello.software = software_version();
  TANDEM_TRY(connection->send_until(deadline, {.type = wire::Type::kHello}, hello.encode()));
  // Who is asked may have to ask its hub first whether we are of the room.
  TANDEM_ASSIGN(const wire::Header answer,
                connection->receive_until(wire::Clock::now() + options.silence, 4096));
  if (answer.type == wire::Type::kRefusal) {
    TANDEM_ASSIGN(const wire::Refusal refusal, wire::Refusal::decode(connection->payload()));
    return Error{ErrorKind::kPeer, "refused: " + refusal.reason};
  }
  if (answer.type != wire::Type::kWelcome) {
    return Error{ErrorKind::kPeer, "answered with a " + std::string(wire::name(answer.type)) +
                                       " frame, expected welcome"};
  }
  return std::unique_ptr<RangeClient>(
      new RangeClient(options.tls, std::move(connection), options.silence));
}

Status RangeClient::read(const Digest& model_hash, const std::string& tensor, uint64_t offset,
                         std::span<std::byte> out) {
  while (!out.empty()) {
    const auto part = out.first(std::min<size_t>(out.size(), wire::kMaxRangeBytes));
    const wire::NeedRange request{model_hash, offset, static_cast<uint32_t>(part.size()), tensor};
    TANDEM_TRY(connection_->send_until(wire::Clock::now() + silence_,
                                       {.type = wire::Type::kNeedRange}, request.encode()));
    TANDEM_TRY(receive(part));
    offset += part.size();
    out = out.subspan(part.size());
  }
  return {};
}

Status RangeClient::receive(std::span<std::byte> part) {
  auto deadline = wire::Clock::now() + silence_;
  size_t got = 0;
  // What had come when `deadline` was set: a few bytes each time would hold us up for ever.
  size_t before = 0;
  while (got < part.size()) {
    TANDEM_ASSIGN(const wire::Header header,
                  connection_->receive_until(deadline, wire::kMaxChunkBytes));
    const auto& payload = connection_->payload();
    if (header.type == wire::Type::kRefusal && got == 0) {
      TANDEM_ASSIGN(const wire::Refusal refusal, wire::Refusal::decode(payload));
      // Whatever the reason: it does not give this one, and may give others.
      return Error{ErrorKind::kNotFound, refusal.reason};
    }
    if (header.type != wire::Type::kTensorChunk || payload.empty() ||
        payload.size() > part.size() - got) {
      return Error{ErrorKind::kPeer, "sent a " + std::string(wire::name(header.type)) +
                                         " frame of " + std::to_string(payload.size()) +
                                         " bytes, expected at most " +
                                         std::to_string(part.size() - got) + " of a tensor"};
    }
    std::copy(payload.begin(), payload.end(), part.begin() + static_cast<ptrdiff_t>(got));
    got += payload.size();
    if (got - before >= kLeastBytes) {
      before = got;
      deadline = wire::Clock::now() + silence_;
    } else if (got < part.size() && wire::Clock::now() >= deadline) {
      return Error{ErrorKind::kPeer, "gave " + std::to_string(got - before) + " bytes in " +
                                         std::to_string(silence_.count()) + " ms, expected " +
                                         std::to_string(kLeastBytes)};
    }
  }
  return {};
}

}  // namespace tandem::ring
