#include "weights/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "weights/block.h"

namespace tandem::weights {

namespace {

// memcpy instead of a cast: a tensor may start at any byte of its file. Compilers turn these loops
// into vector code.
template <typename Bits, typename Convert>
void widen_elements(const std::byte* bytes, std::span<float> values, Convert convert) {
  for (size_t i = 0; i < values.size(); ++i) {
    Bits bits{};
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    values[i] = convert(bits);
  }
}

/// True if an element of [begin, end) has all bits of `exponent` set.
template <typename Bits>
bool any_special(const std::byte* bytes, size_t begin, size_t end, Bits exponent) {
  Bits found = 0;
  for (size_t i = begin; i < end; ++i) {
    Bits bits{};
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    found = static_cast<Bits>(found | static_cast<Bits>((bits & exponent) == exponent));
  }
  return found != 0;
}

/// Index of the first NaN or infinity, or `count`.
template <typename Bits>
size_t first_special(const std::byte* bytes, size_t count, Bits exponent) {
  constexpr size_t kBlock = 4096;  // a whole block without a branch, so that it vectorizes
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    if (!any_special<Bits>(bytes, begin, end, exponent)) continue;
    for (size_t i = begin; i < end; ++i) {
      if (any_special<Bits>(bytes, i, i + 1, exponent)) return i;
    }
  }
  return count;
}

/// The same for a type of blocks, each of which has to be widened.
size_t first_special_in_blocks(const TensorData& tensor) {
  const BlockSize block = block_size(tensor.info.dtype);
  std::vector<float> values(block.elements);
  const uint64_t blocks = tensor.bytes.size() / block.bytes;
  for (uint64_t b = 0; b < blocks; ++b) {
    widen_blocks(tensor.info.dtype, tensor.bytes.data() + b * block.bytes, values);
    for (uint32_t i = 0; i < block.elements; ++i) {
      if (!std::isfinite(values[i])) return b * block.elements + i;
    }
  }
  return blocks * block.elements;
}

}  // namespace

std::string_view name(DType dtype) {
  constexpr std::string_view kNames[kDTypes] = {
      "F32",    "F16",   "BF16",     "Q4_0",     "Q4_1",          "Q5_0",         "Q5_1",
      "Q8_0",   "Q2_K",  "Q3_K",     "Q4_K",     "Q5_K",          "Q6_K",         "IQ4_NL",
      "IQ4_XS", "MXFP4", "I4 group", "I8 group", "F8_E4M3 group", "F8_E5M2 group"};
  const auto index = static_cast<uint8_t>(dtype);
  return index < kDTypes ? kNames[index] : "unknown";
}

std::optional<uint64_t> tensor_bytes(DType dtype, std::span<const uint64_t> shape) {
  const BlockSize block = block_size(dtype);
  if (!whole_blocks(dtype, shape.empty() ? 1 : shape.back())) return std::nullopt;
  uint64_t elements = 1;
  for (const uint64_t extent : shape) {
    if (extent == 0 || __builtin_mul_overflow(elements, extent, &elements)) return std::nullopt;
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / block.elements, uint64_t{block.bytes}, &bytes) ||
      (elements | bytes) >> 63 != 0) {
    return std::nullopt;
  }
  return bytes;
}

Status widen(DType dtype, std::span<const std::byte> bytes, std::span<float> values) {
  const uint64_t expected = bytes_of(dtype, values.size());
  if (bytes.size() != expected || !whole_blocks(dtype, values.size())) {
    return invalid("expected " + std::to_string(expected) + " bytes for " +
                   std::to_string(values.size()) + " elements of " + std::string(name(dtype)) +
                   ", found " + std::to_string(bytes.size()));
  }
  switch (dtype) {
    case DType::kF32:
      if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return {};
    case DType::kF16:
      widen_elements<uint16_t>(bytes.data(), values, f16_to_f32);
      return {};
    case DType::kBF16:
      widen_elements<uint16_t>(bytes.data(), values, bf16_to_f32);
      return {};
    default:
      widen_blocks(dtype, bytes.data(), values);
      return {};
  }
}

Status check_finite(const TensorData& tensor) {
  const std::byte* bytes = tensor.bytes.data();
  const size_t count = tensor.info.elements();
  size_t index = 0;
  switch (tensor.info.dtype) {
    case DType::kF32:
      index = first_special<uint32_t>(bytes, count, 0x7f800000u);
      break;
    case DType::kF16:
      index = first_special<uint16_t>(bytes, count, 0x7c00u);
      break;
    case DType::kBF16:
      index = first_special<uint16_t>(bytes, count, 0x7f80u);
      break;
    default:
      index = first_special_in_blocks(tensor);
      break;
  }
  if (index == count) return {};
  const uint64_t block = block_size(tensor.info.dtype).elements;
  std::vector<float> values(block);
  const uint64_t begin = index / block * block;
  TANDEM_TRY(widen(
      tensor.info.dtype,
      tensor.bytes.subspan(bytes_of(tensor.info.dtype, begin), block_size(tensor.info.dtype).bytes),
      values));
  const float value = values[index - begin];
  const char* what = std::isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity";
  return invalid("tensor " + tensor.info.name + ": element " + std::to_string(index) + " is " +
                 what + ", expected finite weights");
}

}  // namespace tandem::weights
