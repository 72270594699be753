// The numbers of the arithmetic contract: its version, its integer widths, its limits.
// docs/arithmetic.md derives each of them; the other headers of this folder are the definitions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tandem::arithmetic {

/// Version of the whole contract. Two programs with the same version, model, prompt and seed give
/// the same bits. It changes with any change of a result, however small.
inline constexpr uint32_t kContractVersion = 1;

/// Largest magnitude of a 16-bit activation, key or value. Not 32767, so that q = 256 * high + low
/// with both planes signed 8-bit integers: 127 * 256 + 127.
inline constexpr int32_t kMaxActivation = 32639;

/// Activations whose largest magnitude in a token is below 2^kMinExponent count as zero. Keeps
/// every scale and every product that can matter in binary32's normal range, so that machines that
/// flush subnormals agree.
inline constexpr int kMinExponent = -80;

/// Longest row of a matrix: 255 * 128 * 65536 < 2^31, so 8-bit planes never overflow 32-bit sums.
inline constexpr uint32_t kMaxRow = 65536;

/// Largest head_dim: 32639 * 128 * 512 < 2^31.
inline constexpr uint32_t kMaxHeadDim = 512;

/// Longest context: denominators and weighted sums fit 63 bits up to here.
inline constexpr uint32_t kMaxPositions = 262144;

/// Positions of a KV cache are summed in blocks of this many: 4095 * 32639 * 16 < 2^31.
inline constexpr uint32_t kBlock = 16;

/// Weights of one group of a 4-bit row.
inline constexpr uint32_t kGroup = 32;

/// Unit of a group's minimum in a 4-bit row: weight = row_scale * (scale * q - kMinimumUnit *
/// minimum).
inline constexpr int32_t kMinimumUnit = 8;

/// 2^exponent as binary32; exponent in [-126, 127].
inline float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

/// Magnitude of x as an integer that orders like |x| (infinity and NaN above all numbers).
inline uint32_t magnitude_bits(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7fffffffU;
}

/// magnitude_bits of infinity: everything from here on is not a number to compute with.
inline constexpr uint32_t kInfinityBits = 0x7f800000U;

/// magnitude_bits of 2^kMinExponent.
inline constexpr uint32_t kMinBits = static_cast<uint32_t>(127 + kMinExponent) << 23;

/// Nearest integer, ties to even: the rounding of every float to an integer in the contract.
inline int32_t round_to_int(float x) {
  return static_cast<int32_t>(std::nearbyintf(x));
}

/// floor(x / 2^shift + 1/2): the rounding of every right shift in the contract. shift in [0, 63].
inline int64_t shift_round(int64_t x, unsigned shift) {
  return shift == 0 ? x : (x + (int64_t{1} << (shift - 1))) >> shift;
}

}  // namespace tandem::arithmetic
