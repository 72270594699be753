// The tile quantizer, 4 rows to a vector. See quantize_lanes.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "arithmetic/dot.h"
#include "arithmetic/format.h"
#include "weights/quantize_tile.h"

#define TANDEM_LANES 4
#define TANDEM_TARGET

namespace tandem::weights {
namespace {

using Float = float __attribute__((vector_size(TANDEM_LANES * 4)));
using Integer = int32_t __attribute__((vector_size(TANDEM_LANES * 4)));

// a < b ? a : b, a > b ? a : b, the larger integer, and the nearest integer as in quantize.cpp.
inline Float lower(Float a, Float b) {
  return a < b ? a : b;
}
inline Float higher(Float a, Float b) {
  return a > b ? a : b;
}
inline Integer larger(Integer a, Integer b) {
  return a > b ? a : b;
}
inline Float nearest(Float x) {
  constexpr float kShift = 12582912.0F;
  return (x + kShift) - kShift;
}

#include "weights/quantize_lanes.h"

}  // namespace

TileQuantizer baseline_tile_quantizer() {
  return quantize_tile;
}

}  // namespace tandem::weights
