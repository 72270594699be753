#include "kernels/cpu/kv_cache.h"

#include <algorithm>

#include "arithmetic/quantize.h"

namespace tandem::kernels::cpu {
namespace {

uint32_t padded(uint32_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

// Bytes of the keys, or of the values, of one chunk of one kv head.
size_t vector_bytes(uint32_t padded_dim, uint32_t bits) {
  return size_t{kChunk} * padded_dim * (bits / 8);
}

// The same with values, and an exponent each a position.
size_t head_bytes(uint32_t padded_dim, uint32_t bits) {
  return 2 * vector_bytes(padded_dim, bits) + 2 * sizeof(int16_t) * kChunk;
}

size_t key_place(uint32_t lane, uint32_t channel, uint32_t) {
  return key_offset(lane, channel);
}

}  // namespace

CpuKvCache::CpuKvCache(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                       const CacheOptions& options)
    : kv_heads_(kv_heads),
      head_dim_(head_dim),
      padded_dim_(padded(head_dim)),
      bits_(options.bits),
      layers_(layers),
      heads_(size_t{layers} * kv_heads) {
  for (size_t i = 0; i < layers && i < options.windows.size(); ++i) {
    layers_[i].window = options.windows[i];
  }
}

uint64_t CpuKvCache::chunk_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t bits) {
  return kv_heads * head_bytes(padded(head_dim), bits);
}

uint64_t CpuKvCache::layer_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t bits,
                                 uint32_t window, uint32_t positions) {
  uint64_t chunks = (uint64_t{positions} + kChunk - 1) / kChunk;
  if (window != 0) {
    // Positions that need not begin with a chunk, so one more of these.
    const uint64_t kept = uint64_t{window} - 1 + kWindowMargin + kWidestPass;
    chunks = std::min(chunks, (kept + kChunk - 1) / kChunk + 1);
  }
  return chunks * chunk_bytes(kv_heads, head_dim, bits);
}

Status CpuKvCache::reserve(uint32_t positions) {
  const size_t wanted = (size_t{positions} + kChunk - 1) / kChunk;
  const uint64_t bytes = chunk_bytes(kv_heads_, head_dim_, bits_);
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    while (layer.chunks.size() < wanted) {
      Chunk chunk;
      if (layer.chunks.size() >= layer.first) {
        if (layer.unused.empty()) {
          chunk = Chunk(bytes);
          if (chunk.size() == 0) {
            return Error{ErrorKind::kMemory, "no memory for the KV cache's next 256 positions (" +
                                                 std::to_string(layers_.size() * bytes) +
                                                 " bytes)"};
          }
          bytes_ += bytes;
        } else {
          chunk = std::move(layer.unused.back());
          layer.unused.pop_back();
        }
      }
      for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        Head& head = heads_[index(i, kv_head)];
        const auto place = [&](size_t offset) {
          if (chunk.size() == 0) return static_cast<const int16_t*>(nullptr);
          return reinterpret_cast<const int16_t*>(
              chunk.data() + kv_head * head_bytes(padded_dim_, bits_) + offset);
        };
        const size_t vectors = vector_bytes(padded_dim_, bits_);
        head.keys.push_back(place(0));
        head.values.push_back(place(vectors));
        head.key_exponents.push_back(place(2 * vectors));
        head.value_exponents.push_back(place(2 * vectors + sizeof(int16_t) * kChunk));
      }
      layer.chunks.push_back(std::move(chunk));
    }
  }
  return {};
}

uint32_t CpuKvCache::first_seen(uint32_t layer, uint32_t length) const {
  const uint32_t window = layers_[layer].window;
  return window != 0 && length >= window ? length - window + 1 : 0;
}

void CpuKvCache::release(uint32_t floor) {
  if (floor <= floor_) return;
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    const uint32_t first = first_seen(i, floor);
    if (first == 0) continue;
    floor_ = floor;
    let_go(i, first / kChunk);
  }
}

void CpuKvCache::let_go(uint32_t layer, size_t chunks) {
  Layer& one = layers_[layer];
  one.first = std::max(one.first, chunks);
  for (size_t c = 0; c < std::min(one.first, one.chunks.size()); ++c) {
    if (one.chunks[c].size() == 0) continue;
    one.unused.push_back(std::move(one.chunks[c]));
    for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      Head& head = heads_[index(layer, kv_head)];
      head.keys[c] = head.values[c] = head.key_exponents[c] = head.value_exponents[c] = nullptr;
    }
  }
}

void CpuKvCache::clear() {
  floor_ = 0;
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (layer.first == 0) continue;
    let_go(i, layer.chunks.size());
    layer.first = 0;
    layer.chunks.clear();
    for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) heads_[index(i, kv_head)] = {};
  }
}

CacheView CpuKvCache::view(uint32_t layer, uint32_t kv_head) const {
  const Head& head = heads_[index(layer, kv_head)];
  return {head_dim_,          padded_dim_,         bits_, head.keys, head.values,
          head.key_exponents, head.value_exponents};
}

void CpuKvCache::store(const int16_t* chunk, int16_t* exponents, uint32_t slot,
                       size_t (*offset)(uint32_t lane, uint32_t channel, uint32_t padded_dim),
                       const int16_t* values, int32_t exponent) {
  const size_t block = size_t{slot / arithmetic::kBlock} * arithmetic::kBlock * padded_dim_;
  const uint32_t lane = slot % arithmetic::kBlock;
  // The pointers are const for readers; the memory is this cache's own.
  if (bits_ == 8) {
    int16_t rounded[arithmetic::kMaxHeadDim];
    std::copy_n(values, head_dim_, rounded);
    exponent += arithmetic::narrow({rounded, head_dim_});
    auto* bytes = reinterpret_cast<int8_t*>(const_cast<int16_t*>(chunk)) + block;
    for (uint32_t c = 0; c < head_dim_; ++c) {
      bytes[offset(lane, c, padded_dim_)] = static_cast<int8_t>(rounded[c]);
    }
  } else {
    int16_t* place = const_cast<int16_t*>(chunk) + block;
    for (uint32_t c = 0; c < head_dim_; ++c) place[offset(lane, c, padded_dim_)] = values[c];
  }
  exponents[slot] = static_cast<int16_t>(exponent);
}

void CpuKvCache::store_key(uint32_t layer, uint32_t kv_head, uint32_t position,
                           const int16_t* values, int32_t exponent) {
  const Head& head = heads_[index(layer, kv_head)];
  const uint32_t chunk = position / kChunk;
  store(head.keys[chunk], const_cast<int16_t*>(head.key_exponents[chunk]), position % kChunk,
        key_place, values, exponent);
}

void CpuKvCache::store_value(uint32_t layer, uint32_t kv_head, uint32_t position,
                             const int16_t* values, int32_t exponent) {
  const Head& head = heads_[index(layer, kv_head)];
  const uint32_t chunk = position / kChunk;
  store(head.values[chunk], const_cast<int16_t*>(head.value_exponents[chunk]), position % kChunk,
        value_offset, values, exponent);
}

int16_t CpuKvCache::value_at(const int16_t* chunk, size_t offset) const {
  return bits_ == 8 ? reinterpret_cast<const int8_t*>(chunk)[offset] : chunk[offset];
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
        *to++ = value_at(head.keys[chunk], block + key_offset(lane, c));
      for (uint32_t c = 0; c < head_dim_; ++c) {
        *to++ = value_at(head.values[chunk], block + value_offset(lane, c, padded_dim_));
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
  const int32_t most = bits_ == 8 ? 127 : arithmetic::kMaxActivation;
  const int more = bits_ == 8 ? 8 : 0;
  const int16_t* from = in.data();
  for (uint32_t position = first; position < first + count; ++position) {
    for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head, from += 2 * (1 + head_dim_)) {
      const auto usable = [most](int16_t x) { return x >= -most && x <= most; };
      if (from[0] < kLeast - 15 || from[0] > 116 + more || from[1] < kLeast ||
          from[1] > 114 + more ||
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
