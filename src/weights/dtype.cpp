#include "weights/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

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

}  // namespace

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
  }
  return "unknown";
}

Status widen(DType dtype, std::span<const std::byte> bytes, std::span<float> values) {
  const uint64_t expected = uint64_t{values.size()} * size_of(dtype);
  if (bytes.size() != expected) {
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
  }
  return unsupported("element type " + std::to_string(static_cast<int>(dtype)));
}

Status check_finite(const TensorData& tensor) {
  const std::byte* bytes = tensor.bytes.data();
  const size_t count = tensor.bytes.size() / size_of(tensor.info.dtype);
  size_t index = count;
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
  }
  if (index == count) return {};
  float value = 0;
  const uint64_t size = size_of(tensor.info.dtype);
  TANDEM_TRY(widen(tensor.info.dtype, tensor.bytes.subspan(index * size, size), {&value, 1}));
  const char* what = std::isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity";
  return invalid("tensor " + tensor.info.name + ": element " + std::to_string(index) + " is " +
                 what + ", expected finite weights");
}

}  // namespace tandem::weights
