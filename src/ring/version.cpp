#include "ring/worker.h"

namespace tandem::ring {

uint32_t contract_version() { return 1; }
std::string software_version() { return "tandem 0.1"; }

}  // namespace tandem::ring
