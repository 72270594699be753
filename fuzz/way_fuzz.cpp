// Any bytes as the way that a host tells a worker to dial.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "room/way_list.h"

using namespace tandem::room;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto way = parse_way(bytes);
  if (!way.ok()) return 0;
  if (way->addresses.size() > 16) std::abort();
  // Written again, as much of it as fits, it is the same way.
  std::vector<std::string> places;
  for (const auto& address : way->addresses) places.push_back(address.text());
  if (!way->device.empty()) places.push_back(relay_way(way->device));
  const std::string text = way_of(places);
  if (text.empty()) return 0;
  const auto again = parse_way(text);
  if (!again.ok() || again->addresses.size() > way->addresses.size()) std::abort();
  for (size_t i = 0; i < again->addresses.size(); ++i) {
    bool there = false;
    for (const auto& one : way->addresses)
      there = there || one.text() == again->addresses[i].text();
    if (!there) std::abort();
  }
  if (!again->device.empty() && again->device != way->device) std::abort();
  return 0;
}
