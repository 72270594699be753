// Any bytes as a message of multicast DNS.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "hub/mdns.h"

using namespace tandem::hub;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto message = parse_mdns(bytes);
  if (!message.ok()) return 0;
  const MdnsHub hub{"hub", "\x7f\x01\x01\x01", 7443, std::string(64, 'a')};
  (void)asks_for(*message, hub);
  const auto address = read_mdns_answer(*message);
  // What is taken for a hub must be an address that can be written and read again.
  if (address.ok() && !parse_hub(address->text()).ok()) std::abort();
  return 0;
}
