#include "kernels/cpu/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "arithmetic/quantize.h"
#include "base/block.h"

namespace tandem::kernels::cpu {
namespace {

uint32_t padded(uint32_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

// Bytes of the keys, or of the values, of one chunk of one kv head.
size_t vector_bytes(uint32_t padded_dim, uint32_t bits) {
  return size_t{kChunk} * padded_dim * (bits / 8);
}

// Bytes of the multipliers of either; none of 16 bits.
size_t multiplier_bytes(uint32_t padded_dim, uint32_t bits) {
  constexpr uint32_t kGroup = arithmetic::kNarrowGroup;
  return bits == 8 ? size_t{kChunk} * ((padded_dim + kGroup - 1) / kGroup) : 0;
}

// Keys and values with these and an exponent each a position.
size_t head_bytes(uint32_t padded_dim, uint32_t bits) {
  return 2 * (vector_bytes(padded_dim, bits) + multiplier_bytes(padded_dim, bits) +
              sizeof(int16_t) * kChunk);
}

// Chunks that a layer comes to hold at `positions` positions.
uint64_t layer_chunks(uint32_t window, uint32_t positions) {
  const uint64_t chunks = (uint64_t{positions} + kChunk - 1) / kChunk;
  if (window == 0) return chunks;
  // Positions that need not begin with a chunk, so one more of these.
  const uint64_t kept = uint64_t{window} - 1 + kWindowMargin + CpuKvCache::kWidestPass;
  return std::min(chunks, (kept + kChunk - 1) / kChunk + 1);
}

}  // namespace

CpuKvCache::CpuKvCache(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                       const CacheOptions& options)
    : kv_heads_(kv_heads),
      head_dim_(head_dim),
      padded_dim_(padded(head_dim)),
      bits_(options.bits),
      context_(options.context),
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
  return layer_chunks(window, positions) * chunk_bytes(kv_heads, head_dim, bits);
}

uint64_t CpuKvCache::growth(const Layer& layer, size_t wanted, bool ahead) const {
  const size_t first = std::max(layer.chunks.size(), layer.first);
  const size_t needed = wanted > first ? wanted - first : 0;
  if (needed <= layer.unused.size()) return 0;
  const uint64_t lacking = needed - layer.unused.size();
  if (!ahead) return lacking;
  const uint64_t most = layer_chunks(layer.window, context_);
  const uint64_t left = most > layer.owned ? most - layer.owned : 0;
  return std::max(lacking, std::min({layer.owned, uint64_t{kLongestRun}, left}));
}

Status CpuKvCache::reserve(uint32_t positions) {
  const size_t wanted = (size_t{positions} + kChunk - 1) / kChunk;
  const uint64_t bytes = chunk_bytes(kv_heads_, head_dim_, bits_);
  // All of it or nothing is added; if need be, only what is lacking now.
  uint8_t* next = nullptr;
  bool ahead = context_ != 0;
  for (;; ahead = false) {
    uint64_t added = 0;
    for (const Layer& layer : layers_) added += growth(layer, wanted, ahead);
    if (added == 0) break;
    std::shared_ptr<void> memory;
    if (added <= SIZE_MAX / 2 / bytes) memory = allocate_pages(static_cast<size_t>(added * bytes));
    if (memory != nullptr) {
      next = static_cast<uint8_t*>(memory.get());
      memory_.push_back(std::move(memory));
      bytes_ += added * bytes;
      break;
    }
    if (!ahead) {
      return Error{ErrorKind::kMemory, "no memory for the KV cache's next positions, up to " +
                                           std::to_string(wanted * kChunk) + " (" +
                                           std::to_string(added * bytes) + " bytes)"};
    }
  }
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    for (uint64_t left = growth(layer, wanted, ahead); left != 0;) {
      const auto run = static_cast<uint32_t>(std::min<uint64_t>(left, kLongestRun));
      for (uint32_t c = 0; c < run; ++c) layer.unused.push_back({next, c, run});
      next += run * bytes;
      layer.owned += run;
      left -= run;
    }
    while (layer.chunks.size() < wanted) {
      Chunk chunk;
      if (layer.chunks.size() >= layer.first) {
        chunk = layer.unused.front();
        layer.unused.pop_front();
      }
      add_chunk(i, chunk);
      layer.chunks.push_back(chunk);
    }
  }
  return {};
}

void CpuKvCache::add_chunk(uint32_t layer, const Chunk& chunk) {
  const size_t vectors = vector_bytes(padded_dim_, bits_);
  const size_t exponents = sizeof(int16_t) * kChunk;
  const size_t multipliers = multiplier_bytes(padded_dim_, bits_);
  for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
    Head& head = heads_[index(layer, kv_head)];
    // One part of the head follows the other, each of all the run's chunks.
    size_t part = kv_head * head_bytes(padded_dim_, bits_) * chunk.run_chunks;
    const auto place = [&](size_t bytes) -> const uint8_t* {
      if (chunk.run == nullptr) return nullptr;
      const size_t offset = part + chunk.index * bytes;
      part += chunk.run_chunks * bytes;
      return chunk.run + offset;
    };
    const auto shorts = [&](size_t bytes) {
      return reinterpret_cast<const int16_t*>(place(bytes));
    };
    head.keys.push_back(shorts(vectors));
    head.values.push_back(shorts(vectors));
    head.key_exponents.push_back(shorts(exponents));
    head.value_exponents.push_back(shorts(exponents));
    if (bits_ == 8) {
      head.key_multipliers.push_back(place(multipliers));
      head.value_multipliers.push_back(place(multipliers));
    }
  }
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
    if (one.chunks[c].run == nullptr) continue;
    one.unused.push_back(one.chunks[c]);
    one.chunks[c] = {};
    for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      Head& head = heads_[index(layer, kv_head)];
      head.keys[c] = head.values[c] = head.key_exponents[c] = head.value_exponents[c] = nullptr;
      if (bits_ == 8) head.key_multipliers[c] = head.value_multipliers[c] = nullptr;
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
  return {head_dim_,
          padded_dim_,
          bits_,
          head.keys,
          head.values,
          head.key_exponents,
          head.value_exponents,
          head.key_multipliers,
          head.value_multipliers};
}

// The pointers are const for readers; the memory is this cache's own.
CpuKvCache::Place CpuKvCache::key_place(uint32_t layer, uint32_t kv_head, uint32_t chunk) const {
  const Head& head = heads_[index(layer, kv_head)];
  return {const_cast<int16_t*>(head.keys[chunk]), const_cast<int16_t*>(head.key_exponents[chunk]),
          bits_ == 8 ? const_cast<uint8_t*>(head.key_multipliers[chunk]) : nullptr, true};
}

CpuKvCache::Place CpuKvCache::value_place(uint32_t layer, uint32_t kv_head, uint32_t chunk) const {
  const Head& head = heads_[index(layer, kv_head)];
  return {const_cast<int16_t*>(head.values[chunk]),
          const_cast<int16_t*>(head.value_exponents[chunk]),
          bits_ == 8 ? const_cast<uint8_t*>(head.value_multipliers[chunk]) : nullptr, false};
}

size_t CpuKvCache::Place::offset(uint32_t slot, uint32_t channel, uint32_t padded_dim) const {
  const uint32_t lane = slot % arithmetic::kBlock;
  const size_t block = size_t{slot / arithmetic::kBlock} * arithmetic::kBlock * padded_dim;
  return block + (key ? key_offset(lane, channel) : value_offset(lane, channel, padded_dim));
}

size_t CpuKvCache::multiplier_offset(uint32_t slot, uint32_t channel) const {
  const size_t groups = (padded_dim_ + arithmetic::kNarrowGroup - 1) / arithmetic::kNarrowGroup;
  return (slot / arithmetic::kBlock * groups + channel / arithmetic::kNarrowGroup) *
             arithmetic::kBlock +
         slot % arithmetic::kBlock;
}

void CpuKvCache::store(const Place& place, uint32_t slot, const int16_t* values, int32_t exponent) {
  place.exponents[slot] = static_cast<int16_t>(exponent);
  if (bits_ == 16) {
    int16_t* to = place.vectors + place.offset(slot, 0, padded_dim_);
    if (place.key) {
      static_assert(key_offset(0, 1) == 1 && key_offset(0, 2) == 2 * arithmetic::kBlock);
      for (uint32_t c = 0; c + 1 < head_dim_; c += 2) {
        std::memcpy(to + size_t{c} * arithmetic::kBlock, values + c, 2 * sizeof(int16_t));
      }
      if (head_dim_ % 2 != 0)
        to[size_t{head_dim_ - 1} * arithmetic::kBlock] = values[head_dim_ - 1];
    } else {
      static_assert(value_offset(0, 1, 0) == 2);
      for (uint32_t c = 0; c < head_dim_; ++c) to[size_t{c} * 2] = values[c];
    }
    return;
  }
  auto* bytes = reinterpret_cast<int8_t*>(place.vectors);
  for (uint32_t first = 0; first < head_dim_; first += arithmetic::kNarrowGroup) {
    const uint32_t count = std::min(arithmetic::kNarrowGroup, head_dim_ - first);
    int8_t q[arithmetic::kNarrowGroup];
    const int32_t m = arithmetic::narrow({values + first, count}, {q, count});
    place.multipliers[multiplier_offset(slot, first)] = static_cast<uint8_t>(m - 1);
    for (uint32_t c = 0; c < count; ++c) bytes[place.offset(slot, first + c, padded_dim_)] = q[c];
  }
}

void CpuKvCache::touch(uint32_t layer, uint32_t kv_head, uint32_t position) const {
  const uint32_t slot = position % kChunk;
  const size_t size = bits_ == 16 ? sizeof(int16_t) : sizeof(int8_t);
  for (const Place& place : {key_place(layer, kv_head, position / kChunk),
                             value_place(layer, kv_head, position / kChunk)}) {
    const uint32_t lines = place.key ? padded_dim_ / 2 : padded_dim_ / 16;
    const auto* at =
        reinterpret_cast<const uint8_t*>(place.vectors) + place.offset(slot, 0, padded_dim_) * size;
    for (uint32_t i = 0; i < lines; ++i) __builtin_prefetch(at + size_t{i} * 32 * size, 1);
  }
}

void CpuKvCache::store_key(uint32_t layer, uint32_t kv_head, uint32_t position,
                           const int16_t* values, int32_t exponent) {
  store(key_place(layer, kv_head, position / kChunk), position % kChunk, values, exponent);
}

void CpuKvCache::store_value(uint32_t layer, uint32_t kv_head, uint32_t position,
                             const int16_t* values, int32_t exponent) {
  store(value_place(layer, kv_head, position / kChunk), position % kChunk, values, exponent);
}

bool CpuKvCache::restore(const Place& place, uint32_t slot, const int16_t* values) {
  auto* bytes = reinterpret_cast<int8_t*>(place.vectors);
  for (uint32_t first = 0; first < head_dim_; first += arithmetic::kNarrowGroup) {
    const uint32_t end = std::min(first + arithmetic::kNarrowGroup, head_dim_);
    // Multiples may have become such by a multiplier above the least one.
    uint8_t& multiplier = place.multipliers[multiplier_offset(slot, first)];
    const auto exact = [&](int32_t m) {
      return std::all_of(values + first, values + end,
                         [m](int16_t v) { return v % m == 0 && v / m >= -127 && v / m <= 127; });
    };
    int32_t m = multiplier + 1;
    while (m <= 256 && !exact(m)) ++m;
    if (m > 256) return false;
    multiplier = static_cast<uint8_t>(m - 1);
    for (uint32_t c = first; c < end; ++c) {
      bytes[place.offset(slot, c, padded_dim_)] = static_cast<int8_t>(values[c] / m);
    }
  }
  return true;
}

int16_t CpuKvCache::value_at(const Place& place, uint32_t slot, uint32_t channel) const {
  const size_t offset = place.offset(slot, channel, padded_dim_);
  if (place.multipliers == nullptr) return place.vectors[offset];
  return static_cast<int16_t>(reinterpret_cast<const int8_t*>(place.vectors)[offset] *
                              (place.multipliers[multiplier_offset(slot, channel)] + 1));
}

void CpuKvCache::export_positions(uint32_t layer, uint32_t first, uint32_t count,
                                  std::span<int16_t> out) const {
  int16_t* to = out.data();
  for (uint32_t position = first; position < first + count; ++position) {
    const uint32_t slot = position % kChunk;
    for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      const Place key = key_place(layer, kv_head, position / kChunk);
      const Place value = value_place(layer, kv_head, position / kChunk);
      *to++ = key.exponents[slot];
      *to++ = value.exponents[slot];
      for (uint32_t c = 0; c < head_dim_; ++c) *to++ = value_at(key, slot, c);
      for (uint32_t c = 0; c < head_dim_; ++c) *to++ = value_at(value, slot, c);
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
  constexpr int32_t kMost = arithmetic::kMaxActivation;
  const int16_t* from = in.data();
  for (uint32_t position = first; position < first + count; ++position) {
    for (uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head, from += 2 * (1 + head_dim_)) {
      const auto usable = [](int16_t x) { return x >= -kMost && x <= kMost; };
      if (from[0] < kLeast - 15 || from[0] > 116 || from[1] < kLeast || from[1] > 114 ||
          !std::all_of(from + 2, from + 2 + 2 * size_t{head_dim_}, usable)) {
        return invalid("a key or value out of its range");
      }
      const uint32_t slot = position % kChunk;
      const Place key = key_place(layer, kv_head, position / kChunk);
      const Place value = value_place(layer, kv_head, position / kChunk);
      store(key, slot, from + 2, from[0]);
      store(value, slot, from + 2 + head_dim_, from[1]);
      if (bits_ == 8 &&
          !(restore(key, slot, from + 2) && restore(value, slot, from + 2 + head_dim_))) {
        return invalid("a key or value that no 8 bits stand for");
      }
    }
  }
  return {};
}

}  // namespace tandem::kernels::cpu
