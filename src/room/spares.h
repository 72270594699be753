// Which of a room's devices without layers stand by for which stages.
#pragma once

#include <vector>

#include "room/deal.h"

namespace tandem::room {

/// For each of `workers`, the ring's now, who of `deal.idle` is to hold its layers too: the largest
/// stage first, on a device of another machine if there is one, on the one with the most memory
/// left. A device may stand by for several as far as what its owner lends reaches; who has taken
/// layers over stands by with the rest. Stages that nobody has memory for get nobody.
std::vector<ring::RingWorker> choose_spares(const Deal& deal,
                                            const std::vector<ring::RingWorker>& workers);

}  // namespace tandem::room
