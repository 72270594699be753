// Checks of what plan() is given.
#pragma once

#include "ring/planner.h"

namespace tandem::ring {

/// Error (kInvalid): names the device, layer or link whose value is not a number, zero where it may
/// not be, absurd, or twice there.
Status check_plan_input(const PlanInput& input);

}  // namespace tandem::ring
