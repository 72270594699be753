// Any bytes as the records of somebody who wants to join: the first byte chooses the side. Also the
// texts that keys and fingerprints are read from.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "wire/tls.h"

using namespace tandem::wire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tls = *Tls::create(*Identity::create(), RoomKey{});
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)parse_room_key(text).ok();
  (void)split_pin(text).ok();
  const auto channel = data[0] % 2 == 0 ? tls->accepting() : tls->connecting(std::nullopt);
  auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  if (!channel->receive({}).ok()) std::abort();
  std::array<std::byte, 100> out;
  while (rest.size() >= TlsChannel::kRecordHeader) {
    const auto body = TlsChannel::body_bytes(rest.first<TlsChannel::kRecordHeader>());
    if (!body.ok()) return 0;
    const size_t whole = std::min(rest.size(), TlsChannel::kRecordHeader + *body);
    if (!channel->receive(rest.first(whole)).ok()) return 0;
    // Nobody gets this far without the other side's secrets.
    if (channel->open()) std::abort();
    (void)channel->read(out).ok();
    rest = rest.subspan(whole);
  }
  return 0;
}
