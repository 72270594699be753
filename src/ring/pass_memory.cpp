#include "ring/pass_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "ring/plan.h"

namespace tandem::ring {
namespace {

constexpr uint64_t kFloat = sizeof(float);
/// An activation has 16 bits at most, and its products of a head 32.
constexpr uint64_t kActivation = sizeof(uint16_t);
/// Hidden states of a frame that comes, of one that goes, and of the pass between them.
constexpr uint64_t kFrames = 3;

}  // namespace

uint64_t pass_bytes(const model::ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t queries = uint64_t{config.heads} * config.head_dim;
  const uint64_t keys = uint64_t{config.kv_heads} * config.head_dim;
  const uint64_t routed = uint64_t{config.moe.chosen} * config.moe.width;
  const uint64_t inner = std::max<uint64_t>(config.intermediate_size, routed);
  uint64_t floats = 2 * hidden + 2 * queries + 2 * keys + 2 * inner;
  uint64_t activations = hidden + queries + inner;
  if (config.recurrent_layers(0, config.layers) != 0) {
    const uint64_t values = config.delta.values();
    floats += config.delta.columns() + 2 * values;
    activations += values;
  }
  const uint64_t token =
      kFloat * (floats + queries) + kActivation * activations + kFrames * sizeof(uint16_t) * hidden;
  return token * kMostTokensChosen;
}

uint64_t resident_memory() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace tandem::ring
