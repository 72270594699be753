// What happens to a ring while it answers: who falls silent, who leaves, who takes over.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tandem::ring {

struct Event {
  enum class Kind : uint8_t {
    kSilent,       ///< nothing was heard of a worker for 3.5 s; the answer waits for it
    kBack,         ///< a silent one is heard again
    kLost,         ///< a worker, or a spare, is given up
    kLink,         ///< a link broke or stalled; the workers at its ends are fine
    kDetour,       ///< two workers go on through the host, since the way between them is broken
    kRelay,        ///< a worker is reached by its other way, such as through a hub's relay
    kSpare,        ///< a spare took over
    kStandby,      ///< a spare has loaded its layers
    kReconnected,  ///< a lost worker answered again and keeps its layers
    kReplanned,    ///< layers were given to others
    kLoading,      ///< somebody loads layers
    kReplaying,    ///< the lost caches are computed again
    kGoesOn,       ///< the answer goes on
    kSlow,         ///< a worker has become so slow that the layers should be dealt anew
  };
  Kind kind = Kind::kSilent;
  std::string peer;  ///< whom it is about: an address, "host", or empty
  std::string text;  ///< one sentence for people
  double at_ms = 0;  ///< since the answer began; set by Conversation
};
/// "silent", "back", "lost", "link", "detour", "relay", "spare", "standby", "reconnected",
/// "replanned", "loading", "replaying", "goes_on", "slow".
std::string_view name(Event::Kind kind);

/// Called on the thread that runs the ring.
using Listener = std::function<void(const Event&)>;

}  // namespace tandem::ring
