#include "room/held.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ring/planner.h"

namespace tandem::room {

using fetch::SourceKind;

namespace {

constexpr size_t kMostHeld = 16;

}  // namespace

std::vector<Held> held_of(const Json& report) {
  std::vector<Held> all;
  const Json& list = part_of(report, "cached");
  if (!list.is_array()) return all;
  for (const Json& one : list) {
    Held held;
    const std::string layers = text_of(one, "layers");
    if (all.size() == kMostHeld) break;
    if (!parse_hex(text_of(one, "model"), held.model_hash)) continue;
    const auto count = static_cast<uint32_t>(std::count(layers.begin(), layers.end(), ',') + 1);
    auto ranges = ring::parse_split(layers, ring::kMaxPlanLayers, count);
    if (!ranges.ok()) continue;
    held.layers = std::move(*ranges);
    all.push_back(std::move(held));
  }
  return all;
}

std::set<SourceKind> usual_sources() {
  return {SourceKind::kCache, SourceKind::kPeer, SourceKind::kHost};
}

std::set<SourceKind> room_sources(const Json& spec) {
  const Json& list = part_of(spec, "sources");
  // Left out is the usual, anything else that is no list is not understood.
  if (list.is_null()) return usual_sources();
  std::set<SourceKind> kinds;
  if (!list.is_array()) return kinds;
  for (const Json& one : list) {
    if (!one.is_string()) continue;
    const auto kind = fetch::parse_sources(one.get_ref<const std::string&>());
    if (kind.ok()) kinds.insert(kind->begin(), kind->end());
  }
  return kinds;
}

}  // namespace tandem::room
