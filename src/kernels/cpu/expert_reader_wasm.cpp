// Nothing is mapped in a browser.
#include "kernels/cpu/expert_reader.h"

namespace tandem::kernels::cpu {

struct ExpertReader::Work {};

ExpertReader::ExpertReader() = default;
ExpertReader::~ExpertReader() = default;

void ExpertReader::begin(std::span<const std::shared_ptr<OnDemand>>) {}
std::vector<ExpertReader::Arrival> ExpertReader::wait() {
  return {};
}

}  // namespace tandem::kernels::cpu
