// Any bytes as a stream of frames: header by header, payload by payload.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "wire/messages.h"

using namespace tandem::wire;

namespace {

template <typename Message>
void decode(std::span<const std::byte> payload) {
  const auto message = Message::decode(payload);
  // What decodes must encode to something that decodes to the same.
  if (!message.ok()) return;
  if constexpr (requires { message->protocol; }) {
    if (message->protocol != kProtocolVersion) return;
  }
  const Bytes bytes = message->encode();
  const auto again = Message::decode(bytes);
  if (!again.ok() || again->encode() != bytes) std::abort();
}

void decode_payload(Type type, std::span<const std::byte> payload) {
  switch (type) {
    case Type::kHello:
      return decode<Hello>(payload);
    case Type::kWelcome:
      return decode<Welcome>(payload);
    case Type::kRefusal:
      return decode<Refusal>(payload);
    case Type::kLoad:
      return decode<Load>(payload);
    case Type::kProgress:
      return decode<Progress>(payload);
    case Type::kReady:
      return decode<Ready>(payload);
    case Type::kActivate:
      return decode<Activate>(payload);
    case Type::kDial:
      return decode<Dial>(payload);
    case Type::kTrouble:
      return decode<Trouble>(payload);
    case Type::kPong:
      return decode<Pong>(payload);
    case Type::kMeasure:
      return decode<Measure>(payload);
    case Type::kMeasured:
      return decode<Measured>(payload);
    case Type::kTestLink:
      return decode<TestLink>(payload);
    case Type::kLinkTested:
      return decode<LinkTested>(payload);
    case Type::kEcho:
      return (void)Echo::decode(payload).ok();
    case Type::kNeedRange:
      return decode<NeedRange>(payload);
    case Type::kNeedTensor:
      (void)decode_tensor_name(payload).ok();
      return;
    default:
      return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto bytes = std::as_bytes(std::span(data, size));
  // The first byte chooses a message for the whole input, so that payloads don't need a header.
  if (!bytes.empty()) {
    decode_payload(static_cast<Type>(std::to_integer<uint8_t>(bytes[0]) % (kLastType + 1)),
                   bytes.subspan(1));
  }
  while (bytes.size() >= kHeaderBytes) {
    std::array<std::byte, kHeaderBytes> head;
    std::memcpy(head.data(), bytes.data(), kHeaderBytes);
    const auto header = decode_header(head);
    if (!header.ok()) return 0;
    bytes = bytes.subspan(kHeaderBytes);
    const auto payload = bytes.first(std::min<size_t>(bytes.size(), header->length));
    auto again = encode(*header);
    if (checked(header->type)) {
      // What is sealed is intact; what claims to be intact is what sealing makes of it.
      seal(again, payload, {});
      if (!intact_header(again) || !intact(again, payload, {})) std::abort();
      if (intact_header(head) && intact(head, payload, {}) && head != again) std::abort();
    }
    // The two checks aside, a header is what it decodes to.
    for (const size_t at : {6, 7, 44, 45, 46, 47}) again[at] = head[at];
    if (again != head || header->length > max_payload(header->type)) std::abort();
    decode_payload(header->type, payload);
    bytes = bytes.subspan(payload.size());
  }
  return 0;
}
