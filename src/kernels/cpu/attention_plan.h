// What the vector sets' attention kernels share: the rows of a task (a head of a token each), the
// blocks of positions they see, and where their numbers lie in a thread's scratch memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/cpu_kernels.h"

namespace tandem::kernels::cpu {

/// What a row's weights are relative to.
struct RowMass {
  uint64_t denominator = 0;
  int32_t least = arithmetic::kMostShift;  ///< smallest of the row's block shifts
};

/// The sink's part of a row's denominator.
inline uint64_t sink_mass(int32_t largest, int32_t sink) {
  return arithmetic::softmax_mass(static_cast<uint32_t>(int64_t{largest} - sink));
}

/// A row's way through attention: scores of whole blocks (some of positions that it must not see),
/// which its weights then replace in the same memory.
struct AttentionPlan {
  uint32_t rows = 0;
  uint32_t first_block = 0;  ///< blocks of kBlock positions, absolute
  uint32_t blocks = 0;
  int32_t* scores = nullptr;        ///< [rows][blocks][16]; later 16 low and 16 high 16-bit halves
  int32_t* block_shifts = nullptr;  ///< [rows][blocks]
  uint8_t* queries = nullptr;       ///< [rows][channel / 2][low pair, high pair] 16-bit planes
  int64_t* totals = nullptr;        ///< [rows][padded_dim], channels in the set's own order
  RowMass* masses = nullptr;        ///< [rows]

  /// Lays a task out in `scratch`; false if memory is exhausted.
  bool make(const CacheView& cache, const AttentionTask& task, AttentionScratch& scratch) {
    rows = task.tokens * task.heads;
    first_block = task.begin(0) / arithmetic::kBlock;
    blocks = (task.end(task.tokens - 1) - 1) / arithmetic::kBlock - first_block + 1;
    uint64_t bytes = 0;
    const auto place = [&bytes](uint64_t size) {
      const uint64_t offset = bytes;
      bytes += (size + 63) / 64 * 64;
      return offset;
    };
    const uint64_t score_place = place(uint64_t{rows} * blocks * 64);
    const uint64_t shift_place = place(uint64_t{rows} * blocks * 4);
    const uint64_t query_place = place(uint64_t{rows} * cache.padded_dim * 4);
    const uint64_t total_place = place(uint64_t{rows} * cache.padded_dim * 8);
    const uint64_t mass_place = place(uint64_t{rows} * sizeof(RowMass));
    uint8_t* memory = scratch.reserve(bytes);
    if (memory == nullptr) return false;
    scores = reinterpret_cast<int32_t*>(memory + score_place);
    block_shifts = reinterpret_cast<int32_t*>(memory + shift_place);
    queries = memory + query_place;
    totals = reinterpret_cast<int64_t*>(memory + total_place);
    masses = reinterpret_cast<RowMass*>(memory + mass_place);
    return true;
  }
  [[nodiscard]] int32_t* row_scores(uint32_t row) const {
    return scores + size_t{row} * blocks * arithmetic::kBlock;
  }
  [[nodiscard]] int32_t* row_shifts(uint32_t row) const {
    return block_shifts + size_t{row} * blocks;
  }
  /// Lanes of a block that hold positions in [begin, end), a bit each.
  [[nodiscard]] uint32_t lanes(uint32_t block, uint32_t begin, uint32_t end) const {
    const uint32_t base = (first_block + block) * arithmetic::kBlock;
    const uint32_t from = std::clamp(begin, base, base + 16) - base;
    const uint32_t to = std::clamp(end, base, base + 16) - base;
    return ((1U << to) - 1) & ~((1U << from) - 1);
  }

  static const int16_t* block_of(std::span<const int16_t* const> chunks, uint32_t block,
                                 uint32_t padded_dim) {
    constexpr uint32_t kBlocks = kChunk / arithmetic::kBlock;
    return chunks[block / kBlocks] + size_t{block % kBlocks} * arithmetic::kBlock * padded_dim;
  }
  static const int16_t* exponents_of(std::span<const int16_t* const> chunks, uint32_t block) {
    return block_of(chunks, block, 1);
  }
};

/// A set's four steps. `score` and `sum` take rows [row, row + the array's index + 1) over blocks
/// [from, to); `weigh` and `finish` one row.
struct AttentionSteps {
  static constexpr uint32_t kMostRowsAtOnce = 4;
  using Rows = void (*)(const CacheView&, const AttentionTask&, const AttentionPlan&, uint32_t row,
                        uint32_t from, uint32_t to);
  uint32_t rows_at_once;
  Rows score[kMostRowsAtOnce];
  RowMass (*weigh)(const CacheView&, const AttentionTask&, const AttentionPlan&, uint32_t row);
  Rows sum[kMostRowsAtOnce];
  void (*finish)(const int64_t* totals, uint32_t head_dim, const RowMass& mass, float* out);
};

/// Attention of a task by a set's steps. False if memory is exhausted.
bool run_attention(const AttentionSteps& steps, const CacheView& cache, const AttentionTask& task,
                   AttentionScratch& scratch, float* out);

/// From this shift on a block adds 0: its sum times 64 is below 2^48.
inline constexpr int32_t kVanishingShift = 49;

}  // namespace tandem::kernels::cpu
