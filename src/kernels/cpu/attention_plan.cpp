#include "kernels/cpu/attention_plan.h"

#include <cstring>

namespace tandem::kernels::cpu {
namespace {

// x = 256 * high + low with low in [-128, 127], in pairs of channels: [low pair, high pair].
void split_query(const int16_t* query, uint32_t padded_dim, uint8_t* planes) {
  auto* pairs = reinterpret_cast<int16_t*>(planes);
  for (uint32_t c = 0; c < padded_dim; c += 2) {
    for (uint32_t i = 0; i < 2; ++i) {
      // In whole numbers: |x| <= kMaxActivation leaves room for the 128.
      const int32_t x = query[c + i];
      const int32_t high = (x + 128) >> 8;
      pairs[c * 2 + i] = static_cast<int16_t>(x - high * 256);
      pairs[c * 2 + 2 + i] = static_cast<int16_t>(high);
    }
  }
}

// Scores, or sums, of all rows over a range's blocks, piece by piece.
void each_piece(const AttentionSteps& steps, bool scores, const CacheView& cache,
                const AttentionTask& task, AttentionPlan& part, uint32_t begin, uint32_t end) {
  const uint32_t dim = cache.padded_dim;
  const uint32_t piece = piece_blocks(dim);
  const AttentionSteps::Rows* step = scores ? steps.score : steps.sum;
  const AttentionSteps::Widen widen = scores ? steps.widen_keys : steps.widen_values;
  for (uint32_t from = begin; from < end; from += piece) {
    const uint32_t to = std::min(end, from + piece);
    if (part.wide != nullptr) {
      part.wide_from = from;
      for (uint32_t block = from; block < to; ++block) {
        const uint32_t place = part.first_block + block;
        widen(AttentionPlan::stored8(scores ? cache.keys : cache.values, place, dim),
              AttentionPlan::multipliers_of(
                  scores ? cache.key_multipliers : cache.value_multipliers, place, cache.groups()),
              dim, part.wide + size_t{block - from} * arithmetic::kBlock * dim);
      }
    }
    for (uint32_t row = 0; row < part.rows; row += steps.rows_at_once) {
      step[std::min(part.rows - row, steps.rows_at_once) - 1](cache, task, part, row, from, to);
    }
  }
}

// `each` calls a body for every range, at the same time or in turn.
template <typename Each>
bool run(const AttentionSteps& steps, const CacheView& cache, const AttentionTask& task,
         uint32_t ranges, AttentionScratch& scratch, float* out, Each&& each) {
  AttentionPlan plan;
  if (!plan.make(cache, task, ranges, scratch)) return false;
  const uint32_t dim = cache.padded_dim;
  const uint32_t rows = plan.rows;
  for (uint32_t row = 0; row < rows; ++row) {
    const uint32_t token = row / task.heads;
    const uint32_t head = row % task.heads;
    split_query(task.queries + token * task.query_stride + size_t{head} * dim, dim,
                plan.queries + size_t{row} * dim * 4);
  }
  each(plan.ranges, [&](uint32_t i) {
    AttentionPlan part = plan.range(i, dim);
    const uint32_t from = plan.range_begin(i);
    const uint32_t to = plan.range_begin(i + 1);
    each_piece(steps, true, cache, task, part, from, to);
    for (uint32_t row = 0; row < rows; ++row) {
      plan.largest[i * rows + row] = steps.largest(task, plan, row, from, to);
    }
  });
  for (uint32_t row = 0; row < rows; ++row) {
    int32_t& largest = plan.largest[row];
    for (uint32_t i = 1; i < plan.ranges; ++i) {
      largest = std::max(largest, plan.largest[i * rows + row]);
    }
    largest = std::max(largest, task.sink(row % task.heads));
  }
  each(plan.ranges, [&](uint32_t i) {
    for (uint32_t row = 0; row < rows; ++row) {
      plan.range_masses[i * rows + row] = steps.weigh(cache, task, plan, row, plan.largest[row],
                                                      plan.range_begin(i), plan.range_begin(i + 1));
    }
  });
  for (uint32_t row = 0; row < rows; ++row) {
    RowMass mass;
    mass.denominator = sink_mass(plan.largest[row], task.sink(row % task.heads));
    for (uint32_t i = 0; i < plan.ranges; ++i) {
      const RowMass& one = plan.range_masses[i * rows + row];
      mass.denominator += one.denominator;
      mass.least = std::min(mass.least, one.least);
    }
    plan.masses[row] = mass;
  }
  const size_t row_totals = size_t{rows} * dim;
  each(plan.ranges, [&](uint32_t i) {
    AttentionPlan part = plan.range(i, dim);
    std::memset(part.totals, 0, row_totals * sizeof(int64_t));
    each_piece(steps, false, cache, task, part, plan.range_begin(i), plan.range_begin(i + 1));
  });
  for (uint32_t i = 1; i < plan.ranges; ++i) {
    for (size_t k = 0; k < row_totals; ++k) plan.totals[k] += plan.totals[i * row_totals + k];
  }
  for (uint32_t row = 0; row < rows; ++row) {
    const uint32_t token = row / task.heads;
    const uint32_t head = row % task.heads;
    steps.finish(plan.totals + size_t{row} * dim, cache.head_dim, plan.masses[row],
                 out + token * task.out_stride + size_t{head} * cache.head_dim);
  }
  return true;
}

}  // namespace

void plain_widen_keys(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                      int16_t* out) {
  for (uint32_t pair = 0; pair < padded_dim / 2; ++pair) {
    const uint8_t* m = multipliers + pair * 2 / arithmetic::kNarrowGroup * arithmetic::kBlock;
    for (uint32_t i = 0; i < 32; ++i) {
      out[pair * 32 + i] = static_cast<int16_t>(in[pair * 32 + i] * (m[i / 2] + 1));
    }
  }
}

void plain_widen_values(const int8_t* in, const uint8_t* multipliers, uint32_t padded_dim,
                        int16_t* out) {
  for (uint32_t pair = 0; pair < arithmetic::kBlock / 2; ++pair) {
    for (uint32_t c = 0; c < padded_dim; ++c) {
      const uint8_t* m = multipliers + c / arithmetic::kNarrowGroup * arithmetic::kBlock + pair * 2;
      const size_t place = (size_t{pair} * padded_dim + c) * 2;
      out[place] = static_cast<int16_t>(in[place] * (m[0] + 1));
      out[place + 1] = static_cast<int16_t>(in[place + 1] * (m[1] + 1));
    }
  }
}

bool run_attention(const AttentionSteps& steps, const CacheView& cache, const AttentionTask& task,
                   ThreadPool* pool, AttentionScratch& scratch, float* out) {
  if (pool == nullptr) {
    return run(steps, cache, task, 1, scratch, out, [](uint32_t, auto&& body) { body(0); });
  }
  // A few ranges a thread, so that one that is held up does not hold up the others.
  const uint32_t ranges = pool->threads() * 4;
  return run(steps, cache, task, ranges, scratch, out, [pool](uint32_t count, auto&& body) {
    pool->split(count, 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) body(static_cast<uint32_t>(i));
    });
  });
}

}  // namespace tandem::kernels::cpu
