// Deals a room's layers out: who is there, what each can do, which layers go where, and why some
// get none.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "ring/host.h"
#include "ring/planner.h"
#include "ring/probe.h"
#include "room/host.h"
#include "room/measured.h"

namespace tandem::room {

struct DealOptions {
  /// Model, bits, context, the host's own stages and memory; workers and TLS are not read.
  ring::ProbeOptions probe;
  ring::Objective objective = ring::Objective::kFastest;
  uint32_t prompt = 512;  ///< tokens of the prompt whose speed is predicted
  /// Give the devices that get layers their jobs, so that a ring can be opened over them.
  bool hire = true;
  /// Measure what is not known. False: count only on devices that were measured before, and, if the
  /// hub is away, on those that hold jobs of this process.
  bool measure = true;
  /// Devices (ids) not to count on, and why.
  std::map<std::string, std::string> without;
  /// Pairs of devices that reach each other by the hub's relay, and those that don't at all, as the
  /// ring under way found out. Read if not `measure`: then the relayed ones are measured so, unless
  /// that is known, and nothing else is.
  Pairs relayed;
  Pairs parted;
  /// Give devices without layers that could stand in for one that has some their jobs too.
  bool spares = true;
};

/// A device without layers that may stand by.
struct Idle {
  uint32_t device = 0;  ///< of Deal::input
  ring::RingWorker worker;
};

struct Deal {
  ring::PlanInput input;  ///< the host first
  ring::Plan plan;
  std::vector<ring::RingWorker> workers;  ///< that get layers, in the order of the ring
  std::vector<Idle> idle;
  /// Devices that the plan does not know of, by label, and why; others without layers are in it.
  std::vector<std::pair<std::string, std::string>> left_out;
  bool measured = false;        ///< now; else all of it was known
  std::vector<Member> members;  ///< who was counted on; device i of `input` is members[i - 1]
};

/// Finds out and plans. It has to be this process's turn. A room that is short has a plan with
/// `shortage` and no workers; nothing was loaded or measured for it then. Errors: the hub's, those
/// of the probe and of the planner, kCancelled.
Result<Deal> deal(Host& host, const DealOptions& options);

/// What was measured of a device is not true any more: it is measured before the next deal.
void age_figures(const Host& host, const DealOptions& options, const std::string& device);

}  // namespace tandem::room
