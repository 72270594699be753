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

/// Blocks that are read by all rows in turn while they lie in the first-level cache: half of it.
inline constexpr uint32_t kPieceBytes = 16384;
/// Most blocks that a step of several rows is called for.
inline constexpr uint32_t kMostBlocksAtOnce = 32;
constexpr uint32_t piece_blocks(uint32_t padded_dim) {
  return std::clamp(kPieceBytes / (arithmetic::kBlock * padded_dim * 2), 1U, kMostBlocksAtOnce);
}

/// A row's way through attention: scores of whole blocks (some of positions that it must not see),
/// which its weights then replace in the same memory. The blocks are cut into ranges, which may run
/// at the same time; what they find is joined between the steps.
struct AttentionPlan {
  uint32_t rows = 0;
  uint32_t first_block = 0;  ///< blocks of kBlock positions, absolute
  uint32_t blocks = 0;
  uint32_t ranges = 1;
  int32_t* scores = nullptr;        ///< [rows][stride()][16]; later 16 low and 16 high halves
  int32_t* block_shifts = nullptr;  ///< [rows][blocks]
  uint8_t* queries = nullptr;       ///< [rows][channel / 2][low pair, high pair] 16-bit planes
  RowMass* masses = nullptr;        ///< [rows]
  int32_t* largest = nullptr;       ///< [ranges][rows]
  RowMass* range_masses = nullptr;  ///< [ranges][rows]
  int64_t* totals = nullptr;        ///< [ranges][rows][padded_dim], channels in the set's own order
  int16_t* wide = nullptr;          ///< [ranges][piece]: blocks of an 8-bit cache in 16 bits
  uint32_t wide_from = 0;           ///< the first of them

  /// Lays a task out in `scratch`; false if memory is exhausted. With 16 rows it takes 17.9 MB at
  /// kMaxPositions.
  bool make(const CacheView& cache, const AttentionTask& task, uint32_t parts,
            AttentionScratch& scratch) {
    rows = task.tokens * task.heads;
    first_block = task.begin(0) / arithmetic::kBlock;
    blocks = (task.end(task.tokens - 1) - 1) / arithmetic::kBlock - first_block + 1;
    ranges = std::min(parts, blocks);
    uint64_t bytes = 0;
    const auto place = [&bytes](uint64_t size) {
      const uint64_t offset = bytes;
      bytes += (size + 63) / 64 * 64;
      return offset;
    };
    const uint64_t all = uint64_t{ranges} * rows;
    const uint64_t score_place = place(uint64_t{rows} * stride() * 64);
    const uint64_t shift_place = place(uint64_t{rows} * blocks * 4);
    const uint64_t query_place = place(uint64_t{rows} * cache.padded_dim * 4);
    const uint64_t mass_place = place(uint64_t{rows} * sizeof(RowMass));
    const uint64_t largest_place = place(all * 4);
    const uint64_t range_place = place(all * sizeof(RowMass));
    const uint64_t total_place = place(all * cache.padded_dim * 8);
    const uint64_t piece = uint64_t{piece_blocks(cache.padded_dim)} * cache.padded_dim * 32;
    const uint64_t wide_place = place(cache.bits == 8 ? ranges * piece : 0);
    uint8_t* memory = scratch.reserve(bytes);
    if (memory == nullptr) return false;
    scores = reinterpret_cast<int32_t*>(memory + score_place);
    block_shifts = reinterpret_cast<int32_t*>(memory + shift_place);
    queries = memory + query_place;
    masses = reinterpret_cast<RowMass*>(memory + mass_place);
    largest = reinterpret_cast<int32_t*>(memory + largest_place);
    range_masses = reinterpret_cast<RowMass*>(memory + range_place);
    totals = reinterpret_cast<int64_t*>(memory + total_place);
    if (cache.bits == 8) wide = reinterpret_cast<int16_t*>(memory + wide_place);
    return true;
  }
  /// The same with the memory of one range for totals and widened blocks.
  [[nodiscard]] AttentionPlan range(uint32_t index, uint32_t padded_dim) const {
    AttentionPlan part = *this;
    part.totals += size_t{index} * rows * padded_dim;
    if (wide != nullptr) part.wide += size_t{index} * piece_blocks(padded_dim) * padded_dim * 16;
    return part;
  }
  /// Where a range begins; where the one before it ends.
  [[nodiscard]] uint32_t range_begin(uint32_t index) const {
    return static_cast<uint32_t>(uint64_t{blocks} * index / ranges);
  }

  /// Blocks from a row's scores to the next one's: odd, so that rows lie in different sets of the
  /// first-level cache.
  [[nodiscard]] uint32_t stride() const { return blocks | 1; }
  [[nodiscard]] int32_t* row_scores(uint32_t row) const {
    return scores + size_t{row} * stride() * arithmetic::kBlock;
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

  /// A block's keys or values in 16 bits.
  [[nodiscard]] const int16_t* block_of(std::span<const int16_t* const> chunks, uint32_t block,
                                        uint32_t padded_dim) const {
    if (wide != nullptr) return wide + size_t{block - wide_from} * arithmetic::kBlock * padded_dim;
    return stored(chunks, first_block + block, padded_dim);
  }
  /// The block that lies `count` further on, to be touched ahead of its use: in the next chunk
  /// perhaps. At the end, and where blocks are widened, one that is there already.
  [[nodiscard]] const int16_t* block_after(std::span<const int16_t* const> chunks, uint32_t block,
                                           uint32_t count, uint32_t padded_dim) const {
    const bool there = wide != nullptr || block + count >= blocks;
    return block_of(chunks, there ? block : block + count, padded_dim);
  }
  [[nodiscard]] const int16_t* exponents_of(std::span<const int16_t* const> chunks,
                                            uint32_t block) const {
    return stored(chunks, first_block + block, 1);
  }

  static const int16_t* stored(std::span<const int16_t* const> chunks, uint32_t block,
                               uint32_t padded_dim) {
    constexpr uint32_t kBlocks = kChunk / arithmetic::kBlock;
    return chunks[block / kBlocks] + size_t{block % kBlocks} * arithmetic::kBlock * padded_dim;
  }
  /// The same of a cache of 8 bits, and of its multipliers.
  static const int8_t* stored8(std::span<const int16_t* const> chunks, uint32_t block,
                               uint32_t padded_dim) {
    constexpr uint32_t kBlocks = kChunk / arithmetic::kBlock;
    return reinterpret_cast<const int8_t*>(chunks[block / kBlocks]) +
           size_t{block % kBlocks} * arithmetic::kBlock * padded_dim;
  }
  static const uint8_t* multipliers_of(std::span<const uint8_t* const> chunks, uint32_t block,
                                       uint32_t groups) {
    constexpr uint32_t kBlocks = kChunk / arithmetic::kBlock;
    return chunks[block / kBlocks] + size_t{block % kBlocks} * arithmetic::kBlock * groups;
  }
};

/// A set's steps, over blocks [from, to) of a plan. `score` and `sum` take rows [row, row + the
/// array's index + 1), the others one row.
struct AttentionSteps {
  static constexpr uint32_t kMostRowsAtOnce = 4;
  using Rows = void (*)(const CacheView&, const AttentionTask&, const AttentionPlan&, uint32_t row,
                        uint32_t from, uint32_t to);
  uint32_t rows_at_once;
  Rows score[kMostRowsAtOnce];
  /// Largest score of positions that the row sees; INT32_MIN if it sees none.
  int32_t (*largest)(const AttentionTask&, const AttentionPlan&, uint32_t row, uint32_t from,
                     uint32_t to);
  /// Replaces scores by weights relative to `largest`, the whole row's; the sink's mass apart.
  RowMass (*weigh)(const CacheView&, const AttentionTask&, const AttentionPlan&, uint32_t row,
                   int32_t largest, uint32_t from, uint32_t to);
  Rows sum[kMostRowsAtOnce];
  void (*finish)(const int64_t* totals, uint32_t head_dim, const RowMass& mass, float* out);
  /// A block's keys, or values, of 8 bits times their multipliers [group][position 16], which are
  /// stored less one, in the same order.
  using Widen = void (*)(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                         int16_t* out);
  Widen widen_keys;
  Widen widen_values;
};

/// The last two for sets that have none of their own.
void plain_widen_keys(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                      int16_t* out);
void plain_widen_values(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                        int16_t* out);

/// CpuKernels::attention by a set's steps.
bool run_attention(const AttentionSteps& steps, const CacheView& cache, const AttentionTask& task,
                   ThreadPool* pool, AttentionScratch& scratch, float* out);

/// From this shift on a block adds 0: its sum times 64 is below 2^48.
inline constexpr int32_t kVanishingShift = 49;

}  // namespace tandem::kernels::cpu
