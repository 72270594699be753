// The tile quantizer, 16 rows to a vector. See quantize_lanes.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "arithmetic/dot.h"
#include "arithmetic/format.h"
#include "weights/quantize_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TANDEM_LANES 16
#define TANDEM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

namespace tandem::weights {
namespace {

using Float = float __attribute__((vector_size(TANDEM_LANES * 4)));
using Integer = int32_t __attribute__((vector_size(TANDEM_LANES * 4)));

// a < b ? a : b, a > b ? a : b, the larger integer, and the nearest integer, ties to even: other
// than in quantize.cpp it may be -0, which no integer and no error shows.
TANDEM_TARGET inline Float lower(Float a, Float b) {
  return (Float)_mm512_min_ps((__m512)a, (__m512)b);
}
TANDEM_TARGET inline Float higher(Float a, Float b) {
  return (Float)_mm512_max_ps((__m512)a, (__m512)b);
}
TANDEM_TARGET inline Integer larger(Integer a, Integer b) {
  return (Integer)_mm512_max_epi32((__m512i)a, (__m512i)b);
}
TANDEM_TARGET inline Float nearest(Float x) {
  return (Float)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#include "weights/quantize_lanes.h"

}  // namespace

TileQuantizer avx512_tile_quantizer() {
  return quantize_tile;
}

}  // namespace tandem::weights

#else

namespace tandem::weights {

TileQuantizer avx512_tile_quantizer() {
  return nullptr;
}

}  // namespace tandem::weights

#endif
