// What was measured of a room's devices and links, kept on the host's disk so that the next start
// need not measure again.
//
//   HOME/measured/KEY.json, KEY of the model, its bits, and what of the host counts:
//   {"devices": {ID: {…}}, "links": {"ID ID": {…}, "relay ID ID": {…}}, "host_ms": …,
//    "host_token_ms": …}
//
// A device counts as measured for a week, with the same threads, instruction set, version and place
// in the network, and a link for a week too. Who is new is measured alone, and so are its links.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ring/probe.h"
#include "room/member.h"

namespace tandem::room {

/// Which measurements are the same ones.
struct MeasuredModel {
  Digest model_hash{};
  uint8_t weight_bits = 8;
  uint8_t kv_bits = 16;
  uint32_t host_threads = 1;
  std::string host_isa;
};

/// What is still to be measured: devices, the host first, and pairs a < b of them.
struct Missing {
  std::vector<bool> devices;
  std::set<std::pair<uint32_t, uint32_t>> links;

  [[nodiscard]] bool none() const;
  /// Device `i` is to be measured itself, or a link of its.
  [[nodiscard]] bool involves(uint32_t i) const;
};

/// Pairs of devices (ids, the lesser first; this host is "host").
using Pairs = std::set<std::pair<std::string, std::string>>;
std::pair<std::string, std::string> pair_of(const std::string& a, const std::string& b);

class Measured {
 public:
  /// Of the file; empty if it is not there or damaged.
  static Measured load(const std::filesystem::path& home, const MeasuredModel& model);
  [[nodiscard]] Missing missing(const std::vector<Member>& members,
                                const std::vector<std::string>& addresses) const;
  /// A probe's result for the host and these members, in this order, if all of it is known.
  /// `memory` is what each lent when it was measured. `anyway`: figures of any age will do, and of
  /// another way to the same device, such as the direct one if it is reached through the hub now
  /// and put_relayed() was told nothing; links that are not known count as missing. `relayed`:
  /// devices that reach each other by the relay.
  [[nodiscard]] std::optional<ring::RoomProbe> find(const std::vector<Member>& members,
                                                    const std::vector<std::string>& addresses,
                                                    bool anyway = false,
                                                    const Pairs& relayed = {}) const;
  /// Links that go by the relay now, those of `relayed` and the host's to whom it reaches so, and
  /// are known only as they are without it: pairs a < b, the host being 0.
  [[nodiscard]] std::set<std::pair<uint32_t, uint32_t>> unknown_relayed(
      const std::vector<Member>& members, const std::vector<std::string>& addresses,
      const Pairs& relayed) const;
  /// Remembers links that went by the relay. What is known of the direct ones stays.
  void put_relayed(const std::vector<Member>& members, const ring::RoomProbe& probe);
  /// Remembers what a probe of the host and these members found out of `what`. A file that can't be
  /// written costs time only.
  void put(const std::vector<Member>& members, const std::vector<std::string>& addresses,
           const ring::RoomProbe& probe, const Missing& what);
  /// A device's figures are not of today any more: it is measured before the next deal.
  void age(const std::string& device);

 private:
  void write() const;
  std::filesystem::path path_;
  Json content_;
};

}  // namespace tandem::room
