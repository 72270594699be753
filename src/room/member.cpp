#include "room/member.h"

#include <algorithm>
#include <map>

#include "hub/settings.h"
#include "ring/worker.h"

namespace tandem::room {
namespace {

constexpr int64_t kSilentMs = 45000;  // three heartbeats
constexpr size_t kMostAddresses = 16;
constexpr size_t kMostAddress = 300;

double figure(const Json& object, const char* name) {
  const Json& value = part_of(object, name);
  return value.is_number() ? value.get<double>() : 0;
}

hub::Condition condition_of(const Json& report) {
  hub::Condition condition;
  if (part_of(report, "battery").is_number()) condition.battery = figure(report, "battery");
  if (part_of(report, "temperature").is_number()) {
    condition.temperature = figure(report, "temperature");
  }
  return condition;
}

Member member_of(const Json& json, int64_t now) {
  Member member;
  const Json& report = part_of(json, "report");
  member.device = text_of(json, "device");
  member.name = text_of(json, "name");
  member.kind = text_of(json, "kind");
  member.role = text_of(json, "role");
  Digest certificate;
  if (parse_hex(text_of(json, "certificate"), certificate)) member.certificate = certificate;
  member.silent_ms = std::max<int64_t>(now - number_of(json, "seen"), 0);
  if (part_of(report, "addresses").is_array()) {
    for (const Json& address : report["addresses"]) {
      const bool good = address.is_string() && address.get<std::string>().size() <= kMostAddress;
      if (good && member.addresses.size() < kMostAddresses) member.addresses.push_back(address);
    }
  }
  member.memory = size_of(report, "memory");
  member.limit = size_of(report, "limit");
  member.could_lend = size_of(report, "could_lend");
  member.memory_bandwidth = figure(report, "memory_bandwidth");
  member.threads = static_cast<uint32_t>(std::min<uint64_t>(size_of(report, "threads"), 4096));
  member.contract = static_cast<uint32_t>(size_of(report, "contract"));
  member.version = text_of(report, "version");
  member.isa = text_of(report, "isa");
  member.machine = text_of(report, "machine");
  member.loopback = text_of(report, "loopback");
  member.held = held_of(report);
  member.shared_bytes = size_of(report, "shared_bytes");
  member.placement = part_of(json, "placement");
  member.why = text_of(report, "why");
  if (member.why.empty()) {
    const auto settings = hub::parse_settings(dump(part_of(json, "settings")));
    if (settings.ok()) member.why = why_no_work(*settings, "stage", condition_of(report), now);
  }
  member.paused = !member.why.empty();
  return member;
}

}  // namespace

std::vector<Member> members_of(const Json& room) {
  std::vector<Member> members;
  std::map<std::string, int> names;
  const int64_t now = number_of(room, "now");
  for (const Json& json : part_of(room, "members")) {
    members.push_back(member_of(json, now));
    // A device that only asks is never named beside those that lend.
    if (members.back().lends()) ++names[members.back().name];
  }
  for (Member& member : members) {
    // "host" is what messages call the host's own layers.
    const bool plain = names[member.name] <= 1 && member.name != "host";
    member.label = plain ? member.name : member.name + " " + member.device.substr(0, 6);
  }
  return members;
}

std::string why_not(const Member& member) {
  if (member.silent_ms > kSilentMs) {
    return "not heard of for " + std::to_string(member.silent_ms / 1000) + " s";
  }
  if (!member.why.empty()) return member.why;
  if (member.addresses.empty()) return "no worker runs there";
  if (member.contract != ring::contract_version()) {
    return "has arithmetic contract version " + std::to_string(member.contract) +
           ", this host has " + std::to_string(ring::contract_version());
  }
  if (!member.certificate) return "the hub shows no certificate of it";
  return "";
}

}  // namespace tandem::room
