// What a device says of the weights on its disk, and what a room says of where weights may come
// from: JSON from others.
#pragma once

#include <set>
#include <vector>

#include "base/hash.h"
#include "fetch/source.h"
#include "ring/plan.h"
#include "room/json.h"

namespace tandem::room {

/// Layers of a model whose weights a device has on its disk.
struct Held {
  Digest model_hash{};
  std::vector<ring::LayerRange> layers;  ///< rising, none empty
};

/// "cached" of a device's report, 16 models at most. What is malformed counts as not said.
std::vector<Held> held_of(const Json& report);

/// Kinds of sources that a room allows: "sources" of its spec, a list of names, else
/// usual_sources(). A name that is not known allows nothing.
std::set<fetch::SourceKind> room_sources(const Json& spec);
/// cache, peer, host: nobody outside the room learns what it loads.
std::set<fetch::SourceKind> usual_sources();

}  // namespace tandem::room
