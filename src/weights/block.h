// Blocks of quantized weights, as GGUF files and Tandem's own readers hold them, widened to
// binary32. With little-endian integers, u for unsigned, f16 and f32 for IEEE numbers, and n(i) for
// the nibble of element i (below, of byte i % 16: the low one for i < 16, else the high one):
//
//   Q4_0    32: d:f16 nibbles:16                  w = d * (n - 8)
//   Q4_1    32: d:f16 m:f16 nibbles:16            w = d * n + m
//   Q5_0    32: d:f16 high:u32 nibbles:16         w = d * (n + 16 bit i of high - 16)
//   Q5_1    32: d:f16 m:f16 high:u32 nibbles:16   w = d * (n + 16 bit i of high) + m
//   Q8_0    32: d:f16 q:i8*32                     w = d * q
//   IQ4_NL  32: d:f16 nibbles:16                  w = d * table[n]
//   MXFP4   32: e:u8 nibbles:16                   w = 2^(e - 127) * (binary4 of n)
//   Q2_K   256: scales:u8*16 quants:64 d:f16 m:f16     w = d * (scale & 15) * q - m * (scale >> 4)
//   Q3_K   256: high:32 quants:64 scales:12 d:f16      w = d * (scale - 32) * (q - 4)
//   Q4_K   256: d:f16 m:f16 scales:12 nibbles:128      w = d * scale * n - m * minimum
//   Q5_K   256: d:f16 m:f16 scales:12 high:32 nibbles:128   the same with 5 bits
//   Q6_K   256: low:128 high:64 scales:i8*16 d:f16     w = d * scale * (q - 32)
//   IQ4_XS 256: d:f16 high:u16 low:4 nibbles:128       w = d * (scale - 32) * table[n]
//   I4 group   32: scale:f32 zero:i16 nibbles:16       w = scale * (n - zero)
//   I8 group   32: scale:f32 zero:i16 q:i8*32          w = scale * (q - zero)
//   F8 groups  32: scale:f32 q:u8*32                   w = scale * (E4M3 or E5M2 of q)
//
// where a K type's scale and minimum belong to 16 (Q2_K, Q3_K, Q6_K) or 32 elements. Every
// operation is one of binary32, rounded once, products from the left: the same numbers everywhere.
// Source: the layouts of ggml-common.h and dequantize_row_* of ggml-quants.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "weights/source.h"

namespace tandem::weights {

/// Widens values.size() elements, whole blocks of a type from Q4_0 on. `bytes` holds them, of any
/// alignment. Blocks with infinite or NaN scales give such values.
void widen_blocks(DType dtype, const std::byte* bytes, std::span<float> values);

/// What 32 elements of a block are multiples of: w = scale * q - minimum, q in [0, 15]. A scale
/// that is not above 0, or a minimum below 0, says that there is no such grid.
struct GroupGrid {
  float scale = 0;
  float minimum = 0;
};
/// Whether blocks of a type have grids: types of 4 bits whose numbers are evenly spaced.
bool has_grids(DType dtype);
/// The grids of 32 * grids.size() elements, whole blocks of a type that has grids.
void block_grids(DType dtype, const std::byte* bytes, std::span<GroupGrid> grids);

/// 8-bit numbers of the OCP formats. E4M3 (as in float8_e4m3fn) has no infinities and NaN at 0x7f
/// and 0xff; E5M2 is the upper half of binary16. Exact.
float e4m3_to_f32(uint8_t bits);
float e5m2_to_f32(uint8_t bits);

}  // namespace tandem::weights
