// Products of integer weights with 16-bit activations on NVIDIA GPUs: arithmetic/dot.h.
// A warp takes some consecutive rows; a lane reads 16 bytes of each at a time and sums the two
// planes of the activations apart with dp4a. Layouts: kernels/gpu/layout.h. Integer sums have no
// order; the two roundings at the end are written as __fmul_rn and __fadd_rn, which the compiler
// may neither contract nor move.

#include <cstdint>

namespace {

constexpr int kLanes = 32;

struct Arguments {
  const uint4* weights;
  const uint8_t* multipliers;
  const uint2* high_bits;
  const float* row_scales;
  const uint4* planes;  // [token][high, low][words]
  const int32_t* exponents;
  const uint32_t* group_sums;
  const float* bias;  // or null
  float* out;         // [token][rows]
  uint32_t rows;
  uint32_t words;  // 16-byte words of a token's plane
  uint32_t tokens;
  uint32_t first_token;
};

__device__ __forceinline__ int dot16(uint4 w, uint4 x, int sum) {
  sum = __dp4a(static_cast<int>(w.x), static_cast<int>(x.x), sum);
  sum = __dp4a(static_cast<int>(w.y), static_cast<int>(x.y), sum);
  sum = __dp4a(static_cast<int>(w.z), static_cast<int>(x.z), sum);
  return __dp4a(static_cast<int>(w.w), static_cast<int>(x.w), sum);
}

__device__ __forceinline__ uint4 low_nibbles(uint4 w) {
  constexpr uint32_t kMask = 0x0f0f0f0fU;
  return {w.x & kMask, w.y & kMask, w.z & kMask, w.w & kMask};
}

__device__ __forceinline__ uint4 high_nibbles(uint4 w) {
  return low_nibbles({w.x >> 4, w.y >> 4, w.z >> 4, w.w >> 4});
}

// The high bits of 16 six-bit quants, put over their low ones.
__device__ __forceinline__ uint4 with_high(uint4 q, uint32_t bits) {
  constexpr uint32_t kMask = 0x30303030U;
  return {q.x | (bits << 4 & kMask), q.y | (bits << 2 & kMask), q.z | (bits & kMask),
          q.w | (bits >> 2 & kMask)};
}

// Sum over a warp.
__device__ __forceinline__ long long warp_sum(long long x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

// One row's 16-byte word of 8-bit weights.
struct Row8 {
  uint4 w;
  __device__ void load(const Arguments& a, size_t row, uint32_t word) {
    w = __ldcs(&a.weights[row * a.words + word]);
  }
};

template <int kRows, int kTokens>
__device__ __forceinline__ void accumulate8(const Arguments& a, uint32_t row, uint32_t lane,
                                            int (&high)[kRows][kTokens],
                                            int (&low)[kRows][kTokens]) {
#pragma unroll 4
  for (uint32_t word = lane; word < a.words; word += kLanes) {
    Row8 rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r].load(a, min(row + r, a.rows - 1), word);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const size_t token = min(a.first_token + t, a.tokens - 1);
      const uint4 xh = __ldg(&a.planes[token * 2 * a.words + word]);
      const uint4 xl = __ldg(&a.planes[(token * 2 + 1) * a.words + word]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        high[r][t] = dot16(rows[r].w, xh, high[r][t]);
        low[r][t] = dot16(rows[r].w, xl, low[r][t]);
      }
    }
  }
}

// One row's group of 32 weights of 4 or 6 bits.
template <bool kSix>
struct Group {
  uint4 even;
  uint4 odd;
  int scale;
  int minimum;  // times the sum of the activations is taken away

  __device__ __forceinline__ void load(const Arguments& a, size_t index) {
    const uint4 w = __ldcs(&a.weights[index]);
    even = low_nibbles(w);
    odd = high_nibbles(w);
    if constexpr (kSix) {
      const uint2 bits = __ldcs(&a.high_bits[index]);
      even = with_high(even, bits.x);
      odd = with_high(odd, bits.y);
      scale = __ldcs(&a.multipliers[index]);
      minimum = 32 * scale;
    } else {
      const uint32_t both = __ldcs(&reinterpret_cast<const uint16_t*>(a.multipliers)[index]);
      scale = static_cast<int>(both & 0xffU);
      minimum = static_cast<int>(both >> 8) * 8;
    }
  }
};

template <bool kSix, int kRows, int kTokens>
__device__ __forceinline__ void accumulate_groups(const Arguments& a, uint32_t row, uint32_t lane,
                                                  int (&high)[kRows][kTokens],
                                                  int (&low)[kRows][kTokens]) {
  const uint32_t groups = a.words / 2;
#pragma unroll 2
  for (uint32_t g = lane; g < groups; g += kLanes) {
    Group<kSix> rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows[r].load(a, static_cast<size_t>(min(row + r, a.rows - 1)) * groups + g);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const size_t token = min(a.first_token + t, a.tokens - 1);
      const uint4* xh = &a.planes[token * 2 * a.words + 2 * g];
      const uint4* xl = xh + a.words;
      const uint4 h0 = __ldg(xh);
      const uint4 h1 = __ldg(xh + 1);
      const uint4 l0 = __ldg(xl);
      const uint4 l1 = __ldg(xl + 1);
      const auto sums = static_cast<int>(__ldg(&a.group_sums[token * groups + g]));
      const int sum_high = static_cast<int16_t>(sums);
      const int sum_low = sums >> 16;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int qh = dot16(rows[r].odd, h1, dot16(rows[r].even, h0, 0));
        const int ql = dot16(rows[r].odd, l1, dot16(rows[r].even, l0, 0));
        high[r][t] += rows[r].scale * qh - rows[r].minimum * sum_high;
        low[r][t] += rows[r].scale * ql - rows[r].minimum * sum_low;
      }
    }
  }
}

enum Format { kEight, kFour, kSixBits };

template <Format kFormat, int kRows, int kTokens>
__device__ __forceinline__ void matmul(const Arguments& a) {
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t row =
      (blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes) * kRows;
  if (row >= a.rows) return;
  int high[kRows][kTokens] = {};
  int low[kRows][kTokens] = {};
  if constexpr (kFormat == kEight) {
    accumulate8<kRows, kTokens>(a, row, lane, high, low);
  } else {
    accumulate_groups<kFormat == kSixBits, kRows, kTokens>(a, row, lane, high, low);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const long long sum = warp_sum(256LL * high[r][t] + low[r][t]);
      const uint32_t token = a.first_token + t;
      if (lane != 0 || row + r >= a.rows || token >= a.tokens) continue;
      const float power = __int_as_float((a.exponents[token] + 127) << 23);
      float y = __fmul_rn(__ll2float_rn(sum), __fmul_rn(a.row_scales[row + r], power));
      if (a.bias != nullptr) y = __fadd_rn(y, a.bias[row + r]);
      a.out[static_cast<size_t>(token) * a.rows + row + r] = y;
    }
  }
}

}  // namespace

#define TANDEM_DOT(bits, format, rows, tokens)                                              \
  extern "C" __global__ void dot##bits##_rows##rows##_tokens##tokens(const Arguments a) {   \
    matmul<format, rows, tokens>(a);                                                        \
  }
#define TANDEM_DOTS(bits, format)  \
  TANDEM_DOT(bits, format, 1, 1)   \
  TANDEM_DOT(bits, format, 2, 1)   \
  TANDEM_DOT(bits, format, 4, 1)   \
  TANDEM_DOT(bits, format, 2, 2)   \
  TANDEM_DOT(bits, format, 2, 4)   \
  TANDEM_DOT(bits, format, 1, 8)
TANDEM_DOTS(8, kEight)
TANDEM_DOTS(4, kFour)
TANDEM_DOTS(6, kSixBits)
