// The hidden states that travel between layers, in the format of the arithmetic contract: binary16
// values with a power-of-two exponent a token. This is also what the wire carries, without loss.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::model {

/// Hidden states of some consecutive tokens. values[t][i] stands for f16(values[t * width + i])
/// times 2^exponents[t].
struct HiddenStates {
  uint32_t width = 0;              ///< the model's hidden size
  std::vector<uint16_t> values;    ///< binary16 bits, [tokens][width], all finite
  std::vector<int16_t> exponents;  ///< [tokens], -160 to 160

  [[nodiscard]] uint32_t tokens() const { return static_cast<uint32_t>(exponents.size()); }
  void resize(uint32_t tokens, uint32_t new_width) {
    width = new_width;
    values.resize(uint64_t{tokens} * new_width);
    exponents.resize(tokens);
  }
};

}  // namespace tandem::model
