// The random number of a position, and the integer weights that a token is drawn with. Part of the
// contract: who draws, when, and what was drawn before change nothing.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::arithmetic {

/// High 64 bits of the 128-bit product.
constexpr uint64_t multiply_high(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", OOPSLA 2014; constants of variant 13 by Stafford). A bijection of 64-bit numbers.
constexpr uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

/// The random number of one position of one answer, uniform over 64 bits:
/// mix64(mix64(seed + G) + (position + 1) * G), G = 2^64 / golden ratio. `position` is the index of
/// the token that is to be drawn in its sequence, the prompt's first token being 0.
///
/// The seed is mixed first, so that seeds that differ by a multiple of G (or by one) don't give the
/// same numbers shifted by a few positions.
constexpr uint64_t random_at(uint64_t seed, uint64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15U;
  return mix64(mix64(seed + kGolden) + (position + 1) * kGolden);
}

/// Fraction bits of a distance, which counts powers of two.
inline constexpr unsigned kDistanceBits = 32;
/// Fraction bits of a weight. 2^22 weights of at most 2^40 add up to at most 2^62.
inline constexpr unsigned kWeightBits = 40;
/// Weight of distance 0, the most probable token's.
inline constexpr uint64_t kFullWeight = uint64_t{1} << kWeightBits;
/// From this distance on (2^-41) a weight is 0: no token this improbable is ever drawn. A whole
/// vocabulary of 2^18 such tokens would have had 2^-23 of the best one's probability.
inline constexpr uint64_t kZeroDistance = uint64_t{41} << kDistanceBits;

namespace draw_internal {

/// round(2^63 * 2^(-i / 256)), with an error below 8 units: products of the eight constants
/// 2^(-1/2), 2^(-1/4), …, each correctly rounded.
constexpr std::array<uint64_t, 256> make_powers() {
  constexpr std::array<uint64_t, 8> kRoots = {
      0x5a827999fcef3242U, 0x6ba27e656b4eb57aU, 0x75606373ee921c97U, 0x7a92be8a92436616U,
      0x7d41d96db915019dU, 0x7e9f06067a4360baU, 0x7f4f08ae3dc7c426U, 0x7fa765aca88f6453U};
  std::array<uint64_t, 256> powers{};
  for (unsigned i = 0; i < 256; ++i) {
    uint64_t power = uint64_t{1} << 63;
    for (unsigned bit = 0; bit < 8; ++bit) {
      if ((i >> (7 - bit) & 1U) != 0) power = multiply_high(power, kRoots[bit] << 1);
    }
    powers[i] = power;
  }
  return powers;
}
inline constexpr std::array<uint64_t, 256> kPowers = make_powers();

}  // namespace draw_internal

/// round(2^40 * 2^(-distance / 2^32)): the probability of a token against the best one's.
///
/// With distance = n + i/256 + g and y = g ln 2 < 0.0028: 2^-distance = 2^-n 2^(-i/256) e^-y, and
/// e^-y = 1 - (y - y^2/2 + y^3/6 - y^4/24) to a relative 2^-49. All in 64-bit integers, so every
/// machine has the same weights. Never rises with the distance.
constexpr uint64_t weight_at(uint64_t distance) {
  if (distance >= kZeroDistance) return 0;
  constexpr uint64_t kLn2 = 0xb17217f7d1cf79acU;  // ln 2 in units of 2^-64
  const uint64_t whole = distance >> 32;
  const uint64_t power = draw_internal::kPowers[distance >> 24 & 255U];
  const uint64_t y = multiply_high((distance & 0xffffffU) << 32, kLn2);
  const uint64_t y2 = multiply_high(y, y);
  const uint64_t y3 = multiply_high(y2, y);
  const uint64_t y4 = multiply_high(y3, y);
  const uint64_t drop = y - y2 / 2 + y3 / 6 - y4 / 24;
  const uint64_t value = power - multiply_high(power, drop);
  return (value + (uint64_t{1} << (whole + 22))) >> (whole + 23);
}

}  // namespace tandem::arithmetic
