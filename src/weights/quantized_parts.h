// What the readers of quantized checkpoints share: single numbers of stored tensors.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "weights/block.h"
#include "weights/dtype.h"
#include "weights/safetensors.h"

namespace tandem::weights {

/// Elements of the group types that checkpoints are converted to.
inline constexpr uint64_t kGroupOfStored = 32;

inline uint64_t element_count(const StoredTensor& tensor) {
  return tensor.bytes / size_of(tensor.type);
}

inline bool is_scale_type(StoredType type) {
  return type == StoredType::kF32 || type == StoredType::kF16 || type == StoredType::kBF16 ||
         type == StoredType::kF8E8M0;
}

/// Element `index` of a tensor of type F32, F16, BF16, E8M0, E4M3 or E5M2.
inline float stored_number(StoredType type, std::span<const std::byte> bytes, uint64_t index) {
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    return value;
  };
  switch (type) {
    case StoredType::kF32:
      return read(0.0F);
    case StoredType::kF16:
      return f16_to_f32(read(uint16_t{0}));
    case StoredType::kBF16:
      return bf16_to_f32(read(uint16_t{0}));
    case StoredType::kF8E4M3:
      return e4m3_to_f32(read(uint8_t{0}));
    case StoredType::kF8E5M2:
      return e5m2_to_f32(read(uint8_t{0}));
    case StoredType::kF8E8M0: {
      const auto exponent = read(uint8_t{0});
      return exponent == 0 ? 0x1p-127F : bf16_to_f32(static_cast<uint16_t>(exponent << 7));
    }
    default:
      return 0;
  }
}

}  // namespace tandem::weights
