#include "model/state_stretch.h"

#include <algorithm>
#include <string>

#include "base/bytes.h"
#include "kernels/kernels.h"

namespace tandem::model {

Result<std::vector<std::byte>> stretch_state(std::span<const std::byte> state,
                                             const ModelConfig& config, uint32_t length) {
  const bool windows = std::any_of(config.window.begin(), config.window.end(),
                                   [](uint32_t window) { return window != 0; });
  if (windows || config.recurrent_layers(0, config.layers) != 0) {
    return unsupported(
        "a model with sliding windows or recurrent layers: its context can only be run");
  }
  ByteReader reader(state);
  const auto held = reader.read<uint32_t>();
  reader.read<uint32_t>();  // the floor, which follows from the length
  const auto bits = reader.read<uint32_t>();
  const uint64_t position = uint64_t{config.kv_heads} * 2 * (1 + config.head_dim) * sizeof(int16_t);
  if (!reader.ok() || held == 0 || held > length ||
      reader.remaining() != position * held * config.layers) {
    return invalid("a state of " + std::to_string(held) + " positions and " +
                   std::to_string(state.size()) + " bytes can't be made one of " +
                   std::to_string(length));
  }
  ByteWriter head;
  head.write(length);
  head.write(length - std::min(length, kernels::kWindowMargin));
  head.write(bits);
  std::vector<std::byte> result = head.release();
  result.reserve(result.size() + position * length * config.layers);
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    const auto own = reader.take(position * held);
    for (uint32_t first = 0; first < length; first += held) {
      const auto part = own.first(position * std::min(held, length - first));
      result.insert(result.end(), part.begin(), part.end());
    }
  }
  return result;
}

}  // namespace tandem::model
