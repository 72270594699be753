#include "room/way_list.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tandem::room {
namespace {

constexpr std::string_view kScheme = "relay:";
constexpr size_t kMostPlaces = 16;
/// Longest address that a ring tells a worker (wire::Dial).
constexpr size_t kMostWay = 300;
constexpr size_t kDeviceDigits = 32;

bool is_device(std::string_view text) {
  return text.size() == kDeviceDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

Result<WayList> parse_way(std::string_view way) {
  WayList list;
  while (!way.empty()) {
    const size_t comma = std::min(way.find(','), way.size());
    const std::string_view place = way.substr(0, comma);
    way.remove_prefix(std::min(comma + 1, way.size()));
    if (place.starts_with(kScheme)) {
      const std::string_view device = place.substr(kScheme.size());
      if (!is_device(device)) {
        return invalid("expected 32 hexadecimal digits of a device after '" + std::string(kScheme) +
                       "', found " + std::to_string(device.size()) + " bytes");
      }
      if (!list.device.empty() && list.device != device) {
        return invalid("a way through the relay to two devices");
      }
      list.device = device;
      continue;
    }
    auto address = wire::parse_address(place);
    if (!address.ok()) return address.error().in("a way to a device");
    if (list.addresses.size() < kMostPlaces) list.addresses.push_back(std::move(*address));
  }
  if (list.addresses.empty() && list.device.empty()) return invalid("a device without an address");
  return list;
}

std::string relay_way(const std::string& device) {
  return std::string(kScheme) + device;
}

bool is_relayed(std::string_view way) {
  return way.starts_with(kScheme) && way.find(',') == std::string_view::npos;
}

std::string way_of(const std::vector<std::string>& places) {
  std::string way;
  for (const std::string& place : places) {
    if (way.size() + (way.empty() ? 0 : 1) + place.size() > kMostWay) continue;
    way += (way.empty() ? "" : ",") + place;
  }
  return way;
}

}  // namespace tandem::room
