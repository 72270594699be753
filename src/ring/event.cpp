#include "ring/event.h"

namespace tandem::ring {

std::string_view name(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kSilent:
      return "silent";
    case Event::Kind::kBack:
      return "back";
    case Event::Kind::kLost:
      return "lost";
    case Event::Kind::kLink:
      return "link";
    case Event::Kind::kDetour:
      return "detour";
    case Event::Kind::kRelay:
      return "relay";
    case Event::Kind::kSpare:
      return "spare";
    case Event::Kind::kStandby:
      return "standby";
    case Event::Kind::kReconnected:
      return "reconnected";
    case Event::Kind::kReplanned:
      return "replanned";
    case Event::Kind::kLoading:
      return "loading";
    case Event::Kind::kReplaying:
      return "replaying";
    case Event::Kind::kGoesOn:
      return "goes_on";
    case Event::Kind::kSlow:
      return "slow";
  }
  return "unknown";
}

}  // namespace tandem::ring
