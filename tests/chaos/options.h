// What the command line asks of the chaos tests.
#pragma once

#include <cstdint>

namespace tandem::chaos {

struct ChaosOptions {
  uint32_t faults = 14;      ///< over workers with addresses
  uint32_t room_faults = 6;  ///< over rooms
  uint64_t seed = 1;
  uint32_t rooms = 5;  ///< at once
};
ChaosOptions& chaos_options();

}  // namespace tandem::chaos
