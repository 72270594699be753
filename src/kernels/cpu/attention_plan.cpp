#include "kernels/cpu/attention_plan.h"

#include <cstring>

namespace tandem::kernels::cpu {
namespace {

// x = 256 * high + low with low in [-128, 127], in pairs of channels: [low pair, high pair].
void split_query(const int16_t* query, uint32_t padded_dim, uint8_t* planes) {
  for (uint32_t c = 0; c < padded_dim; c += 2) {
    int16_t pairs[4];
    for (uint32_t i = 0; i < 2; ++i) {
      pairs[i] = static_cast<int8_t>(query[c + i] & 255);
      pairs[i + 2] = static_cast<int16_t>((query[c + i] - pairs[i]) / 256);
    }
    std::memcpy(planes + size_t{c} * 4, pairs, sizeof(pairs));
  }
}

}  // namespace

bool run_attention(const AttentionSteps& steps, const CacheView& cache, const AttentionTask& task,
                   AttentionScratch& scratch, float* out) {
  AttentionPlan plan;
  if (!plan.make(cache, task, scratch)) return false;
  const uint32_t dim = cache.padded_dim;
  for (uint32_t row = 0; row < plan.rows; ++row) {
    const uint32_t token = row / task.heads;
    const uint32_t head = row % task.heads;
    split_query(task.queries + token * task.query_stride + size_t{head} * dim, dim,
                plan.queries + size_t{row} * dim * 4);
  }
  // As many blocks as half a first-level cache holds, for all rows in turn.
  const uint32_t piece = std::max(1U, 16384U / (arithmetic::kBlock * dim * 2));
  const auto each = [&](const AttentionSteps::Rows* step) {
    for (uint32_t from = 0; from < plan.blocks; from += piece) {
      const uint32_t to = std::min(plan.blocks, from + piece);
      for (uint32_t row = 0; row < plan.rows; row += steps.rows_at_once) {
        step[std::min(plan.rows - row, steps.rows_at_once) - 1](cache, task, plan, row, from, to);
      }
    }
  };
  each(steps.score);
  for (uint32_t row = 0; row < plan.rows; ++row) {
    plan.masses[row] = steps.weigh(cache, task, plan, row);
  }
  std::memset(plan.totals, 0, size_t{plan.rows} * dim * sizeof(int64_t));
  each(steps.sum);
  for (uint32_t row = 0; row < plan.rows; ++row) {
    const uint32_t token = row / task.heads;
    const uint32_t head = row % task.heads;
    steps.finish(plan.totals + size_t{row} * dim, cache.head_dim, plan.masses[row],
                 out + token * task.out_stride + size_t{head} * cache.head_dim);
  }
  return true;
}

}  // namespace tandem::kernels::cpu
