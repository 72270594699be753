// The reference kernels: plain calls of the contract's definitions. Slow, simple, and what every
// other set of kernels is compared with.
#include <vector>

#include "arithmetic/activation.h"
#include "arithmetic/attention.h"
#include "arithmetic/dot.h"
#include "arithmetic/hidden.h"
#include "arithmetic/norm.h"
#include "arithmetic/quantize.h"
#include "arithmetic/router.h"
#include "kernels/cpu/cpu_kernels.h"

namespace tandem::kernels::cpu {
namespace {

namespace a = arithmetic;

bool quantize(const float* x, size_t n, int16_t* values, int32_t* exponent) {
  return a::quantize({x, n}, {values, n}, *exponent);
}

bool rms_norm(const float* x, const float* weight, const a::NormConstants& constants,
              int16_t* scratch, float* y) {
  const size_t n = constants.n;
  return a::rms_norm({x, n}, {weight, n}, constants, {scratch, n}, {y, n});
}

bool layer_norm(const float* x, const float* weight, const float* bias,
                const a::NormConstants& constants, int16_t* scratch, float* y) {
  const size_t n = constants.n;
  return a::layer_norm({x, n}, {weight, n}, {bias, n}, constants, {scratch, n}, {y, n});
}

size_t prepared_bytes(uint32_t) {
  return 0;
}

void prepare(ActivationRows& rows, uint32_t begin, uint32_t end) {
  for (uint32_t t = begin; t < end; ++t) {
    int64_t sum = 0;
    for (uint32_t k = 0; k < rows.padded; ++k) sum += rows.values[size_t{t} * rows.padded + k];
    rows.sums[t] = sum;
  }
}

void matmul(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
            uint32_t tile_end, const float* bias, float* out, size_t stride) {
  std::vector<int32_t> weights(matrix.columns);
  const uint32_t end = std::min(tile_end * kTileRows, matrix.rows);
  for (uint32_t row = tile_begin * kTileRows; row < end; ++row) {
    load_row(matrix, row, weights);
    for (uint32_t t = 0; t < in.tokens; ++t) {
      const int16_t* x = &in.values[size_t{t} * in.padded];
      int64_t sum = 0;
      for (uint32_t k = 0; k < matrix.columns; ++k) sum += int64_t{weights[k]} * x[k];
      const float y = a::scaled(sum, matrix.row_scales[row], in.exponents[t]);
      out[t * stride + row] = bias != nullptr ? y + bias[row] : y;
    }
  }
}

void add(float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] += y[i];
}

void gated_silu(const float* gate, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = a::gated_silu(gate[i], up[i]);
}

void gelu(const float* x, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = a::gelu_tanh(x[i]);
}

void clamped_swiglu(const float* gate, const float* up, size_t n, float alpha, float limit,
                    float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = a::clamped_swiglu(gate[i], up[i], alpha, limit);
}

void weighted_sum(const float* const* rows, const float* weights, size_t count, size_t n,
                  float* out) {
  a::weighted_sum({rows, count}, {weights, count}, {out, n});
}

bool to_boundary(const float* x, size_t n, uint16_t* half, int16_t* exponent) {
  return a::to_boundary({x, n}, {half, n}, *exponent);
}

void from_boundary(const uint16_t* half, size_t n, int16_t exponent, float* x) {
  a::from_boundary({half, n}, exponent, {x, n});
}

int32_t rotate(int16_t* x, size_t n, int32_t exponent, const a::Rotation* rotations,
               int32_t* scratch) {
  return a::rotate({x, n}, exponent, {rotations, n / 2}, {scratch, n});
}

void attention_head(const CacheView& cache, const a::Vector16& query, uint32_t begin, uint32_t end,
                    float constant, int32_t sink, float* out) {
  const uint32_t dim = cache.head_dim;
  const uint32_t count = end - begin;
  std::vector<int16_t> memory(size_t{count} * dim * 2);
  std::vector<a::Vector16> keys(count);
  std::vector<a::Vector16> values(count);
  for (uint32_t j = 0; j < count; ++j) {
    const uint32_t position = begin + j;
    const uint32_t chunk = position / kChunk;
    const uint32_t slot = position % kChunk;
    const uint32_t lane = slot % a::kBlock;
    const size_t block = size_t{slot / a::kBlock} * a::kBlock * cache.padded_dim;
    int16_t* key = &memory[size_t{j} * dim * 2];
    int16_t* value = key + dim;
    for (uint32_t c = 0; c < dim; ++c) {
      const size_t key_place = block + key_offset(lane, c);
      const size_t value_place = block + value_offset(lane, c, cache.padded_dim);
      if (cache.bits == 8) {
        const size_t m =
            (slot / a::kBlock * cache.groups() + c / a::kNarrowGroup) * a::kBlock + lane;
        key[c] =
            static_cast<int16_t>(reinterpret_cast<const int8_t*>(cache.keys[chunk])[key_place] *
                                 (cache.key_multipliers[chunk][m] + 1));
        value[c] =
            static_cast<int16_t>(reinterpret_cast<const int8_t*>(cache.values[chunk])[value_place] *
                                 (cache.value_multipliers[chunk][m] + 1));
      } else {
        key[c] = cache.keys[chunk][key_place];
        value[c] = cache.values[chunk][value_place];
      }
    }
    keys[j] = {{key, dim}, cache.key_exponents[chunk][slot]};
    values[j] = {{value, dim}, cache.value_exponents[chunk][slot]};
  }
  a::AttentionInput input;
  input.query = query;
  input.keys = keys;
  input.values = values;
  input.first = begin;
  input.constant = constant;
  input.sink = sink;
  a::attention(input, {out, dim});
}

bool attention(const CacheView& cache, const AttentionTask& task, ThreadPool*, AttentionScratch&,
               float* out) {
  for (uint32_t t = 0; t < task.tokens; ++t) {
    for (uint32_t h = 0; h < task.heads; ++h) {
      const int16_t* query = task.queries + t * task.query_stride + size_t{h} * cache.padded_dim;
      attention_head(cache, {{query, cache.head_dim}, task.exponents[t * task.exponent_stride + h]},
                     task.begin(t), task.end(t), task.constant, task.sink(h),
                     out + t * task.out_stride + size_t{h} * cache.head_dim);
    }
  }
  return true;
}

}  // namespace

const CpuKernels& scalar_kernels() {
  static const CpuKernels kernels = {
      "scalar", quantize,  rms_norm,       layer_norm,   prepared_bytes, prepare,
      matmul,   add,       gated_silu,     gelu,         to_boundary,    from_boundary,
      rotate,   attention, clamped_swiglu, weighted_sum,
  };
  return kernels;
}

}  // namespace tandem::kernels::cpu
