#include "ring/states.h"

#include <algorithm>
#include <span>
#include <string>

namespace tandem::ring {

Result<wire::Connection::Place> place_states(model::HiddenStates& hidden, uint32_t rows,
                                             uint32_t width, uint32_t length) {
  if (length != states_bytes(rows, width)) {
    return invalid("states frame of " + std::to_string(length) + " bytes, expected " +
                   std::to_string(states_bytes(rows, width)) + " for " + std::to_string(rows) +
                   " rows of " + std::to_string(width));
  }
  hidden.resize(rows, width);
  return wire::Connection::Place{std::as_writable_bytes(std::span(hidden.exponents)),
                                 std::as_writable_bytes(std::span(hidden.values))};
}

Status send_states(wire::Connection& connection, const wire::Header& header,
                   const model::HiddenStates& hidden, uint32_t first, uint32_t count) {
  const std::span<const int16_t> exponents(hidden.exponents);
  const std::span<const uint16_t> values(hidden.values);
  const size_t width = hidden.width;
  return connection.send(header, std::as_bytes(exponents.subspan(first, count)),
                         std::as_bytes(values.subspan(first * width, count * width)));
}

Status check_states(const model::HiddenStates& hidden) {
  constexpr uint16_t kInfinity = 0x7c00;
  // A maximum, not an early exit: the compiler vectorizes it.
  uint16_t largest = 0;
  for (const uint16_t value : hidden.values) {
    largest = std::max(largest, static_cast<uint16_t>(value & 0x7fff));
  }
  if (largest >= kInfinity) return invalid("hidden states with values that are not finite");
  for (const int16_t exponent : hidden.exponents) {
    if (exponent < -160 || exponent > 160) {
      return invalid("hidden states with an exponent of " + std::to_string(exponent) +
                     ", expected -160 to 160");
    }
  }
  return {};
}

}  // namespace tandem::ring
