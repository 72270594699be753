#include "kernels/cpu/kv_cache.h"

#include <algorithm>

namespace tandem::kernels::cpu {
namespace {

uint32_t padded(uint32_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

// 16-bit elements of one chunk of one kv head: keys, values, and an exponent each a position.
size_t head_elements(uint32_t padded_dim) {
  return size_t{kChunk} * (2 * padded_dim + 2);
}

}  // namespace

CpuKvCache::CpuKvCache(uint32_t layers, uint32_t kv_heads, uint32_t head_dim)
    : layers_(layers),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      padded_dim_(padded(head_dim)),
      heads_(size_t{layers} * kv_heads) {}

uint64_t CpuKvCache::chunk_bytes(uint32_t kv_heads, uint32_t head_dim) {
  return kv_heads * head_elements(padded(head_dim)) * sizeof(int16_t);
}

Status CpuKvCache::reserve(uint32_t positions) {
  const size_t wanted = (size_t{positions} + kChunk - 1) / kChunk;
  while (layers_ > 0 && heads_[0].keys.size() < wanted) {
    std::vector<AlignedArray<int16_t>> added;
    const size_t per_head = head_elements(padded_dim_);
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      added.emplace_back(per_head * kv_heads_);
      if (added.back().size() == 0) {
        return Error{ErrorKind::kMemory,
                     "no memory for the KV cache's next 256 positions (" +
                         std::to_string(layers_ * chunk_bytes(kv_heads_, head_dim_)) + " bytes)"};
      }
    }
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        const int16_t* base = added[layer].data() + kv_head * per_head;
        const size_t vectors = size_t{kChunk} * padded_dim_;
        Head& head = heads_[index(layer, kv_head)];
        head.keys.push_back(base);
        head.values.push_back(base + vectors);
        head.key_exponents.push_back(base + 2 * vectors);
        head.value_exponents.push_back(base + 2 * vectors + kChunk);
      }
      chunks_.push_back(std::move(added[layer]));
      bytes_ += chunk_bytes(kv_heads_, head_dim_);
    }
  }
  return {};
}

CacheView CpuKvCache::view(uint32_t layer, uint32_t kv_head) const {
  const Head& head = heads_[index(layer, kv_head)];
  return {head_dim_,          padded_dim_,         16, head.keys, head.values,
          head.key_exponents, head.value_exponents};
}

void CpuKvCache::store_key(uint32_t layer, uint32_t kv_head, uint32_t position,
                           const int16_t* values, int32_t exponent) {
  const Head& head = heads_[index(layer, kv_head)];
  const uint32_t slot = position % kChunk;
  // The pointers are const for readers; the memory is this cache's own.
  auto* block = const_cast<int16_t*>(head.keys[position / kChunk]) +
                size_t{slot / arithmetic::kBlock} * arithmetic::kBlock * padded_dim_;
  const uint32_t lane = slot % arithmetic::kBlock;
  for (uint32_t c = 0; c < head_dim_; ++c) block[key_offset(lane, c)] = values[c];
  const_cast<int16_t*>(head.key_exponents[position / kChunk])[slot] =
      static_cast<int16_t>(exponent);
}

void CpuKvCache::store_value(uint32_t layer, uint32_t kv_head, uint32_t position,
                             const int16_t* values, int32_t exponent) {
  const Head& head = heads_[index(layer, kv_head)];
  const uint32_t slot = position % kChunk;
  auto* block = const_cast<int16_t*>(head.values[position / kChunk]) +
                size_t{slot / arithmetic::kBlock} * arithmetic::kBlock * padded_dim_;
  const uint32_t lane = slot % arithmetic::kBlock;
  for (uint32_t c = 0; c < head_dim_; ++c) block[value_offset(lane, c, padded_dim_)] = values[c];
  const_cast<int16_t*>(head.value_exponents[position / kChunk])[slot] =
      static_cast<int16_t>(exponent);
}

void CpuKvCache::export_positions(uint32_t layer, uint32_t first, uint32_t count,
                                  std::span<int16_t> out) const {
  int16_t* to = out.data();
  for (uint32_t position = first; position < first + count; ++position) {
    const uint32_t slot = position % kChunk;
    const uint32_t lane = slot % arithmetic::kBlock;
    const size_t block = size_t{slot / arithmetic::kBlock} * arithmetic::kBlock * padded_dim_;
    for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      const Head& head = heads_[index(layer, kv_head)];
      const uint32_t chunk = position / kChunk;
      *to++ = head.key_exponents[chunk][slot];
      *to++ = head.value_exponents[chunk][slot];
      for (uint32_t c = 0; c < head_dim_; ++c)
        *to++ = head.keys[chunk][block + key_offset(lane, c)];
      for (uint32_t c = 0; c < head_dim_; ++c) {
        *to++ = head.values[chunk][block + value_offset(lane, c, padded_dim_)];
      }
    }
  }
}

Status CpuKvCache::import_positions(uint32_t layer, uint32_t first, uint32_t count,
                                    std::span<const int16_t> in) {
  if (in.size() != size_t{count} * position_values()) {
    return invalid("keys and values of another shape");
  }
  // Rotating a key brings its exponent down by 15, and its integers up again by less than that.
  constexpr int kLeast = arithmetic::kMinExponent - 14;
  const int16_t* from = in.data();
  for (uint32_t position = first; position < first + count; ++position) {
    for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head, from += 2 * (1 + head_dim_)) {
      const auto usable = [](int16_t x) {
        return x >= -arithmetic::kMaxActivation && x <= arithmetic::kMaxActivation;
      };
      if (from[0] < kLeast - 15 || from[0] > 116 || from[1] < kLeast || from[1] > 114 ||
          !std::all_of(from + 2, from + 2 + 2 * size_t{head_dim_}, usable)) {
        return invalid("a key or value out of its range");
      }
      store_key(layer, kv_head, position, from + 2, from[0]);
      store_value(layer, kv_head, position, from + 2 + head_dim_, from[1]);
    }
  }
  return {};
}

}  // namespace tandem::kernels::cpu
