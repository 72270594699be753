// The tables of the NEON family, and its prepared activations.
#include "kernels/cpu/neon.h"

#include <cstring>

namespace tandem::kernels::cpu {

#if defined(__aarch64__)

namespace neon {
namespace {

// |sum of 8 values| < 2^18 a step; pairwise sums go straight to 64 bits.
int64_t sum_token(const int16_t* values, uint32_t padded) {
  int64x2_t total = vdupq_n_s64(0);
  for (uint32_t k = 0; k < padded; k += 8) {
    total = vpadalq_s32(total, vpaddlq_s16(vld1q_s16(values + k)));
  }
  return vaddvq_s64(total);
}

size_t no_bytes(uint32_t) {
  return 0;
}

void prepare_sums(ActivationRows& rows, uint32_t begin, uint32_t end) {
  for (uint32_t t = begin; t < end; ++t) {
    rows.sums[t] = sum_token(rows.values.data() + size_t{t} * rows.padded, rows.padded);
  }
}

int64_t split_token(const int16_t* values, uint32_t padded, uint8_t* planes) {
  uint8_t* sums = planes + size_t{padded} * 2;
  int64_t total = 0;
  for (uint32_t k = 0; k < padded; k += arithmetic::kGroup) {
    int32x4_t group = vdupq_n_s32(0);
    for (uint32_t i = 0; i < arithmetic::kGroup; i += 8) {
      const int16x8_t x = vld1q_s16(values + k + i);
      // The lower byte as a signed one, and (x - low) >> 8, which is x >> 8 rounded.
      const int8x16_t both = vcombine_s8(vmovn_s16(x), vrshrn_n_s16(x, 8));
      vst1q_s8(reinterpret_cast<int8_t*>(planes) + size_t{k + i} * 2, both);
      group = vpadalq_s16(group, x);
    }
    const int32_t sum = vaddvq_s32(group);
    std::memcpy(sums + k / arithmetic::kGroup * sizeof(int32_t), &sum, sizeof sum);
    total += sum;
  }
  return total;
}

size_t plane_bytes(uint32_t padded) {
  return planes_bytes(padded);
}

void prepare_planes(ActivationRows& rows, uint32_t begin, uint32_t end) {
  const size_t bytes = planes_bytes(rows.padded);
  for (uint32_t t = begin; t < end; ++t) {
    rows.sums[t] = split_token(rows.values.data() + size_t{t} * rows.padded, rows.padded,
                               rows.prepared.data() + t * bytes);
  }
}

void dotprod_matmul(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                    uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const auto product = matrix.format == WeightFormat::k8 ? dotprod_matmul8 : dotprod_matmul4;
  product(matrix, in, tile_begin, tile_end, bias, out, stride);
}

void i8mm_matmul(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                 uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const auto product = matrix.format == WeightFormat::k8 ? i8mm_matmul8 : i8mm_matmul4;
  product(matrix, in, tile_begin, tile_end, bias, out, stride);
}

}  // namespace
}  // namespace neon

const CpuKernels* neon_kernels() {
  static const CpuKernels kernels = {
      "neon",           neon::quantize,     neon::rms_norm,       neon::layer_norm,
      neon::no_bytes,   neon::prepare_sums, neon::matmul,         neon::add,
      neon::gated_silu, neon::gelu,         neon::to_boundary,    neon::from_boundary,
      neon::rotate,     neon::attention,    neon::clamped_swiglu, neon::weighted_sum,
  };
  return &kernels;
}

const CpuKernels* dotprod_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels set = *neon_kernels();
    set.isa = "dotprod";
    set.prepared_bytes = neon::plane_bytes;
    set.prepare = neon::prepare_planes;
    set.matmul = neon::dotprod_matmul;
    return set;
  }();
  return &kernels;
}

const CpuKernels* i8mm_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels set = *dotprod_kernels();
    set.isa = "i8mm";
    set.matmul = neon::i8mm_matmul;
    return set;
  }();
  return &kernels;
}

#else

const CpuKernels* neon_kernels() {
  return nullptr;
}
const CpuKernels* dotprod_kernels() {
  return nullptr;
}
const CpuKernels* i8mm_kernels() {
  return nullptr;
}

#endif

}  // namespace tandem::kernels::cpu
