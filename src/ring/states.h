// Hidden states as payload of kStates frames:
//
//   payload = exponent:i16*rows value:binary16*(rows*width)
#pragma once

#include <cstdint>

#include "base/result.h"
#include "model/hidden.h"
#include "wire/tcp.h"

namespace tandem::ring {

/// Payload bytes of `rows` rows.
constexpr uint64_t states_bytes(uint32_t rows, uint32_t width) {
  return uint64_t{rows} * (uint64_t{width} * 2 + 2);
}

/// Makes room in `hidden` for `rows` rows and returns it as a frame's places, so that they are read
/// off the socket without a copy. Error: kInvalid if `length` is not exactly that of the rows.
Result<wire::Connection::Place> place_states(model::HiddenStates& hidden, uint32_t rows,
                                             uint32_t width, uint32_t length);

/// Sends rows [first, first + count) of `hidden`.
Status send_states(wire::Connection& connection, const wire::Header& header,
                   const model::HiddenStates& hidden, uint32_t first, uint32_t count);

/// Fails if a value is not finite or an exponent is out of range: what no stage may send.
Status check_states(const model::HiddenStates& hidden);

}  // namespace tandem::ring
