// Nothing is mapped in a browser.
#include "kernels/cpu/expert_memory.h"

namespace tandem::kernels::cpu {

struct ExpertMemory::Work {};

ExpertMemory::ExpertMemory() = default;
ExpertMemory::~ExpertMemory() = default;

bool ExpertMemory::use(std::span<const uint32_t>, std::span<const PackedMatrix>) {
  return false;
}
void ExpertMemory::begin_pass(std::span<PackedMatrix>) {}

}  // namespace tandem::kernels::cpu
