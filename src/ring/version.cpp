#include "arithmetic/format.h"
#include "ring/worker.h"

namespace tandem::ring {

uint32_t contract_version() { return arithmetic::kContractVersion; }
std::string software_version() { return "tandem 0.1"; }

}  // namespace tandem::ring
