// What this machine's memory could still hold.
#pragma once

#include <cstdint>

namespace tandem::ring {

/// Bytes that can be had without swapping, by the kernel's estimate, within the limit of this
/// process's control group. 0 if the system does not say.
uint64_t available_memory();

}  // namespace tandem::ring
