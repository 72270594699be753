// The devices of a room as its hub shows them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "room/held.h"
#include "room/json.h"

namespace tandem::room {

struct Member {
  std::string device;
  std::string name;   ///< as its owner called it
  std::string label;  ///< the name, with a piece of the device's id if two share it
  std::string kind;   ///< computer, phone, browser
  std::string role;
  std::optional<Digest> certificate;
  int64_t silent_ms = 0;               ///< since it was last heard of
  std::vector<std::string> addresses;  ///< HOST:PORT, best first; none: it lends nothing
  uint64_t memory = 0;                 ///< bytes that it lends, as far as it has them
  uint64_t limit = 0;                  ///< as its owner set it; 0: no limit
  uint64_t could_lend = 0;
  double memory_bandwidth = 0;  ///< bytes/s; 0: not known
  uint32_t threads = 0;
  uint32_t contract = 0;
  std::string version;
  std::string isa;
  std::string machine;        ///< room::machine_mark()
  std::string loopback;       ///< room::loopback_mark()
  std::vector<Held> held;     ///< as it says
  uint64_t shared_bytes = 0;  ///< of weights that it has given to others
  bool paused = false;
  std::string why;  ///< why it takes no work, as it says or as its owner set at the hub; or empty
  Json placement;

  /// It lends something: a worker runs there, or ran.
  [[nodiscard]] bool lends() const { return !addresses.empty() || !why.empty(); }
};

/// Of a room's JSON. Whatever is malformed in a member counts as not said.
std::vector<Member> members_of(const Json& room);

/// Why a member can't take part now, for people; empty if it can.
std::string why_not(const Member& member);

}  // namespace tandem::room
