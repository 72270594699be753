// Stored element types widened to binary32. Every value of BF16 and F16 is a value of binary32, so
// nothing here rounds, except what block.h says of blocks, and the narrowing that tools use to
// write checkpoints.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "weights/source.h"

namespace tandem::weights {

/// BF16 is the upper half of binary32. NaN payloads are kept.
constexpr float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

/// IEEE binary16 to binary32: exact for normal, subnormal and infinite values; NaNs keep sign and
/// payload (in the upper bits).
constexpr float f16_to_f32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  // Shifted into place, the exponent is too small by 112. Subnormals have no exponent to add to:
  // they are an integer times 2^-24, which a conversion makes exactly.
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << 23);
  const uint32_t special = shifted | 0x7f800000u;
  const auto subnormal = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  uint32_t value = magnitude < 0x0400u ? subnormal : normal;
  value = magnitude >= 0x7c00u ? special : value;
  return std::bit_cast<float>(sign | value);
}

/// binary32 to BF16, to nearest, ties to even. NaNs stay NaNs.
constexpr uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Bytes of a tensor of that type and shape, or nothing if an extent is 0, rows are no whole
/// blocks, or there are 2^63 elements or bytes or more.
std::optional<uint64_t> tensor_bytes(DType dtype, std::span<const uint64_t> shape);

/// Widens little-endian elements of type `dtype` (of any alignment) to `values`, which are whole
/// blocks. Error kInvalid: bytes.size() is not bytes_of(dtype, values.size()).
Status widen(DType dtype, std::span<const std::byte> bytes, std::span<float> values);

/// Fails with kInvalid, naming the tensor, the index and the value, if an element is NaN or
/// infinite. Reads each byte once.
Status check_finite(const TensorData& tensor);

}  // namespace tandem::weights
