#include "room/measured.h"

#include <algorithm>
#include <chrono>

#include "hub/identity.h"
#include "room/way_list.h"

namespace tandem::room {
namespace {

constexpr int64_t kGoodForMs = int64_t{7} * 24 * 3600 * 1000;
constexpr uint64_t kMostFile = 8 << 20;
constexpr size_t kMostDevices = 256;
constexpr uint32_t kMostLayer = 4096;
constexpr size_t kMostWidths = 16;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double figure(const Json& object, const char* name) {
  const Json& value = part_of(object, name);
  return value.is_number() ? value.get<double>() : 0;
}

Json to_json(const wire::Spread& spread) {
  return {{"median", spread.median}, {"low", spread.low}, {"high", spread.high}};
}

wire::Spread spread_of(const Json& json) {
  return {size_of(json, "median"), size_of(json, "low"), size_of(json, "high")};
}

Json to_json(const std::vector<wire::Measured::Width>& widths) {
  Json list = Json::array();
  for (const auto& width : widths) {
    list.push_back(
        {{"width", width.width}, {"runs", width.runs}, {"ns", to_json(width.nanoseconds)}});
  }
  return list;
}

/// False if it is not what to_json() wrote.
bool widths_of(const Json& json, std::vector<wire::Measured::Width>& widths) {
  if (!json.is_array() || json.size() > kMostWidths) return false;
  for (const Json& one : json) {
    const uint64_t width = size_of(one, "width");
    const auto spread = spread_of(part_of(one, "ns"));
    if (width == 0 || width > UINT32_MAX || spread.median == 0) return false;
    widths.push_back({static_cast<uint32_t>(width), 1, spread});
  }
  return true;
}

/// Where in the network a device is: its address without the port, which each start chooses anew.
std::string place_of(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

/// What a device's figures depend on.
std::string mark_of(const Member& member, const std::string& address) {
  return place_of(address) + " " + std::to_string(member.threads) + " " + member.isa + " " +
         member.version;
}

Json device_json(const ring::DeviceProbe& device, const std::string& mark) {
  return {{"mark", mark},
          {"memory", device.memory},
          {"at", now_ms()},
          {"threads", device.threads},
          {"first", device.layers.first},
          {"last", device.layers.last},
          {"weight_bytes", device.weight_bytes},
          {"load_bytes", device.load_bytes},
          {"load_seconds", device.load_seconds},
          {"alone", to_json(device.alone)},
          {"together", to_json(device.together)}};
}

bool is_of_today(const Json& json) {
  const int64_t age = now_ms() - number_of(json, "at");
  return age >= 0 && age <= kGoodForMs;
}

/// A mark without the place: what a device computes in a given time does not depend on the way to
/// it.
std::string without_place(const std::string& mark) {
  return mark.substr(std::min(mark.find(' '), mark.size()));
}

std::optional<ring::DeviceProbe> device_of(const Json& json, const std::string& mark, bool anyway) {
  const std::string known = text_of(json, "mark");
  const bool same = anyway ? without_place(known) == without_place(mark) : known == mark;
  if (!same || (!anyway && !is_of_today(json))) return std::nullopt;
  ring::DeviceProbe device;
  const uint64_t first = size_of(json, "first");
  const uint64_t last = size_of(json, "last");
  if (last > kMostLayer || first > last) return std::nullopt;
  device.layers = {static_cast<uint32_t>(first), static_cast<uint32_t>(last)};
  device.threads = static_cast<uint32_t>(std::min<uint64_t>(size_of(json, "threads"), 4096));
  device.weight_bytes = size_of(json, "weight_bytes");
  device.load_bytes = size_of(json, "load_bytes");
  device.load_seconds = figure(json, "load_seconds");
  const bool good = widths_of(part_of(json, "alone"), device.alone) &&
                    widths_of(part_of(json, "together"), device.together);
  if (!good || device.alone.empty() != (device.layers.count() == 0)) return std::nullopt;
  device.memory = size_of(json, "memory");
  return device;
}

std::string link_of(const std::string& a, const std::string& b) {
  return std::min(a, b) + " " + std::max(a, b);
}

std::string relayed_link_of(const std::string& a, const std::string& b) {
  return "relay " + link_of(a, b);
}

Json link_json(const wire::Spread& rtt, const wire::Spread& speed) {
  return {{"at", now_ms()}, {"rtt_ns", to_json(rtt)}, {"bytes_per_second", to_json(speed)}};
}

std::string id_of(const std::vector<Member>& members, uint32_t device) {
  return device == 0 ? "host" : members[device - 1].device;
}

std::string mark_of_device(const std::vector<Member>& members,
                           const std::vector<std::string>& addresses, uint32_t device) {
  return device == 0 ? "host" : mark_of(members[device - 1], addresses[device - 1]);
}

}  // namespace

std::pair<std::string, std::string> pair_of(const std::string& a, const std::string& b) {
  return {std::min(a, b), std::max(a, b)};
}

bool Missing::none() const {
  return links.empty() &&
         std::none_of(devices.begin(), devices.end(), [](bool one) { return one; });
}

bool Missing::involves(uint32_t i) const {
  return devices[i] || std::any_of(links.begin(), links.end(), [&](const auto& link) {
           return link.first == i || link.second == i;
         });
}

Measured Measured::load(const std::filesystem::path& home, const MeasuredModel& model) {
  Measured measured;
  const std::string key =
      hex(sha256(hex(model.model_hash) + " " + std::to_string(model.weight_bits) + " " +
                 std::to_string(model.kv_bits) + " " + std::to_string(model.host_threads) + " " +
                 model.host_isa));
  measured.path_ = home / "measured" / (key.substr(0, 32) + ".json");
  const auto text = hub::read_small_file(measured.path_, kMostFile, true);
  if (text.ok()) measured.content_ = Json::parse(*text, nullptr, false);
  if (!measured.content_.is_object()) measured.content_ = Json::object();
  return measured;
}

Missing Measured::missing(const std::vector<Member>& members,
                          const std::vector<std::string>& addresses) const {
  Missing missing;
  const Json& devices = part_of(content_, "devices");
  const Json& links = part_of(content_, "links");
  for (uint32_t b = 0; b <= members.size(); ++b) {
    const Json& device = part_of(devices, id_of(members, b).c_str());
    const auto known = device_of(device, mark_of_device(members, addresses, b), false);
    missing.devices.push_back(!known);
    for (uint32_t a = 0; a < b; ++a) {
      const Json& link = part_of(links, link_of(id_of(members, a), id_of(members, b)).c_str());
      // Who was not measured may be in another place now.
      const bool moved = missing.devices[b] || (a != 0 && missing.devices[a]);
      if (moved || !is_of_today(link)) missing.links.emplace(a, b);
    }
  }
  return missing;
}

std::optional<ring::RoomProbe> Measured::find(const std::vector<Member>& members,
                                              const std::vector<std::string>& addresses,
                                              bool anyway, const Pairs& relayed) const {
  ring::RoomProbe probe;
  const Json& devices = part_of(content_, "devices");
  for (uint32_t i = 0; i <= members.size(); ++i) {
    auto device = device_of(part_of(devices, id_of(members, i).c_str()),
                            mark_of_device(members, addresses, i), anyway);
    if (!device) return std::nullopt;
    device->id = i == 0 ? "host" : members[i - 1].label;
    probe.devices.push_back(std::move(*device));
  }
  const Json& links = part_of(content_, "links");
  for (uint32_t b = 1; b <= members.size(); ++b) {
    for (uint32_t a = 0; a < b; ++a) {
      const std::string one = id_of(members, a);
      const std::string other = id_of(members, b);
      const Json& usual = part_of(links, link_of(one, other).c_str());
      const Json& by_relay = part_of(links, relayed_link_of(one, other).c_str());
      const bool goes_by_relay =
          a == 0 ? is_relayed(addresses[b - 1]) : relayed.contains(pair_of(one, other));
      const Json& link = anyway && goes_by_relay && is_of_today(by_relay) ? by_relay : usual;
      if (!anyway && !is_of_today(link)) return std::nullopt;
      const ring::LinkProbe known{a, b, spread_of(part_of(link, "rtt_ns")),
                                  spread_of(part_of(link, "bytes_per_second"))};
      // Zeros stand for a pair that can't reach each other.
      if (known.bytes_per_second.median != 0) probe.links.push_back(known);
    }
  }
  probe.host_ms = figure(content_, "host_ms");
  probe.host_token_ms = figure(content_, "host_token_ms");
  return probe;
}

void Measured::put(const std::vector<Member>& members, const std::vector<std::string>& addresses,
                   const ring::RoomProbe& probe, const Missing& what) {
  if (probe.devices.size() != members.size() + 1) return;
  Json& devices = content_["devices"];
  Json& links = content_["links"];
  if (!devices.is_object() || devices.size() > kMostDevices) devices = Json::object();
  if (!links.is_object() || links.size() > kMostDevices * kMostDevices) links = Json::object();
  for (uint32_t i = 0; i <= members.size(); ++i) {
    if (!what.devices[i]) continue;
    const std::string mark = mark_of_device(members, addresses, i);
    Json& known = devices[id_of(members, i)];
    // That no layer fitted this time does not make older figures wrong.
    const bool keep = probe.devices[i].alone.empty() && device_of(known, mark, false).has_value();
    if (!keep) known = device_json(probe.devices[i], mark);
  }
  for (const auto& [a, b] : what.links) {
    links[link_of(id_of(members, a), id_of(members, b))] = link_json({}, {});
  }
  for (const ring::LinkProbe& link : probe.links) {
    if (!what.links.contains({link.a, link.b})) continue;
    links[link_of(id_of(members, link.a), id_of(members, link.b))] =
        link_json(link.rtt_ns, link.bytes_per_second);
  }
  if (what.devices[0]) {
    content_["host_ms"] = probe.host_ms;
    content_["host_token_ms"] = probe.host_token_ms;
  }
  write();
}

std::set<std::pair<uint32_t, uint32_t>> Measured::unknown_relayed(
    const std::vector<Member>& members, const std::vector<std::string>& addresses,
    const Pairs& relayed) const {
  std::set<std::pair<uint32_t, uint32_t>> unknown;
  const Json& devices = part_of(content_, "devices");
  const Json& links = part_of(content_, "links");
  for (uint32_t b = 1; b <= members.size(); ++b) {
    const std::string other = id_of(members, b);
    const std::string known = text_of(part_of(devices, other.c_str()), "mark");
    // Where the device itself was measured through the hub, so was the way to it.
    const bool to_host = is_relayed(addresses[b - 1]) &&
                         known.substr(0, known.find(' ')) != place_of(addresses[b - 1]);
    for (uint32_t a = 0; a < b; ++a) {
      const std::string one = id_of(members, a);
      if (a == 0 ? !to_host : !relayed.contains(pair_of(one, other))) continue;
      if (!is_of_today(part_of(links, relayed_link_of(one, other).c_str()))) unknown.emplace(a, b);
    }
  }
  return unknown;
}

void Measured::put_relayed(const std::vector<Member>& members, const ring::RoomProbe& probe) {
  Json& links = content_["links"];
  if (!links.is_object() || links.size() > kMostDevices * kMostDevices) links = Json::object();
  for (const ring::LinkProbe& link : probe.links) {
    links[relayed_link_of(id_of(members, link.a), id_of(members, link.b))] =
        link_json(link.rtt_ns, link.bytes_per_second);
  }
  write();
}

void Measured::age(const std::string& device) {
  if (!part_of(part_of(content_, "devices"), device.c_str()).is_object()) return;
  content_["devices"][device]["at"] = 0;
  write();
}

void Measured::write() const {
  if (!hub::make_private_folder(path_.parent_path()).ok()) return;
  (void)hub::write_private_file(path_, dump(content_) + "\n").ok();
}

}  // namespace tandem::room
