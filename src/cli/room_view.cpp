#include "cli/room_view.h"

#include <algorithm>

#include "cli/output.h"
#include "room/member.h"
#include "room/sharing.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;
using room::Json;
using room::Member;
using room::part_of;
using room::size_of;
using room::text_of;

double figure(const Json& object, const char* name) {
  const Json& value = part_of(object, name);
  return value.is_number() ? value.get<double>() : 0;
}

std::string label_of(const std::vector<Member>& members, const std::string& device) {
  for (const Member& member : members) {
    if (member.device == device) return member.label;
  }
  return device.substr(0, 6);
}

/// What a device does, in a word or two; "" if nothing is known of it.
std::string doing(const Member& member, bool turn) {
  const Json& placement = member.placement;
  if (std::string why = text_of(placement, "why"); !why.empty()) return why;
  const std::string state = text_of(placement, "state");
  const uint64_t total = size_of(placement, "total");
  if (!turn || state.empty()) return state.empty() ? "" : "idle";
  std::string spare;
  for (const Json& layers : part_of(placement, "spare_for")) {
    spare += (spare.empty() ? "spare for " : ", ") + text_of({{"layers", layers}}, "layers");
  }
  if (state == "spare") return spare;
  if (state != "loading" || total == 0) return state + (spare.empty() ? "" : ", " + spare);
  return "loading " + std::to_string(100 * std::min(size_of(placement, "done"), total) / total) +
         " %";
}

/// How the host reaches a device, and where its output goes if not straight to the next one.
std::string way_of(const Json& placement) {
  const std::string next = text_of(placement, "next");
  std::string way = text_of(placement, "way");
  if (next == "relay" || next == "host") way += ", next by " + next;
  return way;
}

}  // namespace

std::string room_json(const Json& room) {
  const auto members = room::members_of(room);
  const Json& spec = part_of(room, "spec");
  const Json& turn = part_of(room, "turn");
  ordered_json object;
  object["code"] = text_of(room, "code");
  object["model"] = text_of(spec, "model");
  object["layers"] = size_of(spec, "layers");
  object["context"] = size_of(spec, "context");
  object["objective"] = text_of(spec, "objective");
  object["sources"] = ordered_json::array();
  for (const fetch::SourceKind kind : room::room_sources(spec)) {
    object["sources"].push_back(fetch::name(kind));
  }
  object["creator"] = text_of(room, "creator");
  object["host"] = text_of(room, "host");
  object["turn"] = turn.is_object() ? ordered_json(text_of(turn, "device")) : ordered_json();
  object["devices"] = ordered_json::array();
  for (const Member& member : members) {
    const std::string why = room::why_not(member);
    ordered_json one{{"device", member.device},
                     {"name", member.name},
                     {"kind", member.kind},
                     {"role", member.role},
                     {"silent_ms", member.silent_ms},
                     {"lends", member.lends()},
                     {"takes_work", member.lends() && why.empty()},
                     {"memory", member.memory},
                     {"could_lend", member.could_lend},
                     {"memory_bandwidth", member.memory_bandwidth},
                     {"threads", member.threads},
                     {"isa", member.isa},
                     {"version", member.version},
                     {"shared_bytes", member.shared_bytes}};
    for (const room::Held& held : member.held) {
      std::string layers;
      for (const auto& range : held.layers) {
        layers += (layers.empty() ? "" : ",") + ring::text(range);
      }
      one["cached"].push_back({{"model", hex(held.model_hash)}, {"layers", layers}});
    }
    if (member.lends() && !why.empty()) one["why"] = why;
    if (!member.lends()) one["why"] = "lends nothing";
    const Json& placement = member.placement;
    if (placement.is_object() && !placement.empty()) one["placement"] = placement;
    object["devices"].push_back(std::move(one));
  }
  object["lobby"] = ordered_json::array();
  for (const Json& waiting : part_of(room, "lobby")) {
    object["lobby"].push_back(
        {{"device", text_of(waiting, "device")}, {"name", text_of(waiting, "name")}});
  }
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string room_text(const Json& room) {
  const auto members = room::members_of(room);
  const Json& spec = part_of(room, "spec");
  const Json& turn = part_of(room, "turn");
  std::string text = "room " + text_of(room, "code") + "  " + text_of(spec, "model") + ", " +
                     std::to_string(size_of(spec, "layers")) + " layers, context " +
                     std::to_string(size_of(spec, "context")) + "\n";
  text += turn.is_object() ? label_of(members, text_of(turn, "device")) + " asks\n"
                           : std::string("nobody asks now\n");
  std::vector<std::vector<std::string>> rows{
      {"device", "lends", "layers", "doing", "way", "ms a pass", "ms a hop", "received", "sent"}};
  for (const Member& member : members) {
    if (!member.lends()) continue;
    const std::string why = room::why_not(member);
    const Json& placement = member.placement;
    const bool passes = part_of(placement, "ms_per_pass").is_number();
    rows.push_back({member.label, bytes_text(member.memory), text_of(placement, "layers"),
                    why.empty() ? doing(member, turn.is_object()) : why, way_of(placement),
                    passes ? number(figure(placement, "ms_per_pass"), 2) : "",
                    passes ? number(figure(placement, "hop_ms"), 2) : "",
                    passes ? bytes_text(size_of(placement, "bytes_received")) : "",
                    passes ? bytes_text(size_of(placement, "bytes_sent")) : ""});
  }
  text += rows.size() == 1
              ? "no device lends anything: tandem worker --join LINK\n"
              : table(rows, {false, true, false, false, false, true, true, true, true});
  for (const Json& waiting : part_of(room, "lobby")) {
    text += text_of(waiting, "name") + " asks to join, device " + text_of(waiting, "device") + "\n";
  }
  return text;
}

}  // namespace tandem::cli
