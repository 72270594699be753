// Products of integer weights with 16-bit activations on NVIDIA GPUs: arithmetic/dot.h.
// Some lanes, of one warp or of several, take kRows consecutive rows. Each asks for 16 bytes of
// every row kBatch times before it uses the first, and sums the two planes of the activations apart
// with dp4a. Layouts: kernels/gpu/layout.h. Integer sums have no order; the two roundings at the
// end are written as __fmul_rn and __fadd_rn, which the compiler may neither contract nor move.
//
// From Hopper on a kernel may begin while the one before it ends: its first weights, which no
// kernel writes, are then on their way when its activations are ready (wait_for_inputs).

#include <cstdint>

namespace {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 256;  // of a block; dots.h says so too

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
  uint32_t lanes;  // that share rows: a multiple of kWarp that divides the block
};

enum Format { kEight, kFour, kSix };

__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What earlier kernels wrote may be read, and what they read may be written, from here on.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Weights are read once: they shall not push the activations out of the first cache. Volatile, so
// that the loads of a batch stay together and before wait_for_inputs.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

__device__ __forceinline__ uint2 load_once(const uint2* from) {
  uint2 x;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(x.x), "=r"(x.y)
               : "l"(from));
  return x;
}

__device__ __forceinline__ uint32_t load_once(const uint16_t* from) {
  uint16_t x;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(x) : "l"(from));
  return x;
}

__device__ __forceinline__ uint32_t load_once(const uint8_t* from) {
  uint32_t x;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(x) : "l"(from));
  return x;
}

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
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

// What a lane multiplies at a time: 16 columns of 8 bits, or a group of 32 of 4 or 6 bits. Weights
// are piece(row, index); Inputs is one token's share of the same columns.
template <Format kFormat>
struct Piece {
  uint4 quants;
  uint2 high_bits;
  uint32_t multipliers;

  __device__ __forceinline__ void load(const Arguments& a, size_t index) {
    quants = load_once(&a.weights[index]);
    if constexpr (kFormat == kFour) {
      multipliers = load_once(&reinterpret_cast<const uint16_t*>(a.multipliers)[index]);
    }
    if constexpr (kFormat == kSix) {
      high_bits = load_once(&a.high_bits[index]);
      multipliers = load_once(&a.multipliers[index]);
    }
  }
};

template <Format kFormat, int kRows, int kTokens>
struct Sums {
  int high[kRows][kTokens] = {};
  int low[kRows][kTokens] = {};

  __device__ __forceinline__ void add(const Arguments& a, const Piece<kFormat> (&rows)[kRows],
                                      uint32_t piece) {
    if constexpr (kFormat == kEight) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const uint4* x = &a.planes[token(a, t) * 2 * a.words + piece];
        const uint4 xh = x[0];
        const uint4 xl = x[a.words];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          high[r][t] = dot16(rows[r].quants, xh, high[r][t]);
          low[r][t] = dot16(rows[r].quants, xl, low[r][t]);
        }
      }
    } else {
      uint4 even[kRows];
      uint4 odd[kRows];
      int scale[kRows];
      int minimum[kRows];  // times the sum of the activations is taken away
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        even[r] = low_nibbles(rows[r].quants);
        odd[r] = high_nibbles(rows[r].quants);
        if constexpr (kFormat == kSix) {
          even[r] = with_high(even[r], rows[r].high_bits.x);
          odd[r] = with_high(odd[r], rows[r].high_bits.y);
          scale[r] = static_cast<int>(rows[r].multipliers);
          minimum[r] = 32 * scale[r];
        } else {
          scale[r] = static_cast<int>(rows[r].multipliers & 0xffU);
          minimum[r] = static_cast<int>(rows[r].multipliers >> 8) * 8;
        }
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const uint4* x = &a.planes[token(a, t) * 2 * a.words + 2 * piece];
        const uint4 h0 = x[0];
        const uint4 h1 = x[1];
        const uint4 l0 = x[a.words];
        const uint4 l1 = x[a.words + 1];
        const auto sums = static_cast<int>(a.group_sums[token(a, t) * (a.words / 2) + piece]);
        const int sum_high = static_cast<int16_t>(sums);
        const int sum_low = sums >> 16;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int qh = dot16(odd[r], h1, dot16(even[r], h0, 0));
          const int ql = dot16(odd[r], l1, dot16(even[r], l0, 0));
          high[r][t] += scale[r] * qh - minimum[r] * sum_high;
          low[r][t] += scale[r] * ql - minimum[r] * sum_low;
        }
      }
    }
  }

  __device__ __forceinline__ static size_t token(const Arguments& a, int t) {
    return kTokens == 1 ? a.first_token : min(a.first_token + t, a.tokens - 1);
  }
};

template <Format kFormat, int kRows, int kTokens, int kLoads>
__device__ __forceinline__ void matmul(const Arguments& a) {
  constexpr int kBatch = kLoads / kRows;
  constexpr int kValues = kRows * kTokens;
  static_assert(kValues <= kWarp);
  __shared__ long long partial[kMaxThreads / kWarp][kValues];
  let_next_kernel_begin();
  const uint32_t lane = threadIdx.x % a.lanes;
  const uint32_t warp = threadIdx.x / kWarp;
  const uint32_t row = (blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes) * kRows;
  const uint32_t pieces = kFormat == kEight ? a.words : a.words / 2;

  Sums<kFormat, kRows, kTokens> sums;
#pragma unroll 1
  for (uint32_t first = row < a.rows ? lane : pieces; first < pieces; first += kBatch * a.lanes) {
    Piece<kFormat> batch[kBatch][kRows];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t piece = min(first + b * a.lanes, pieces - 1);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        batch[b][r].load(a, static_cast<size_t>(min(row + r, a.rows - 1)) * pieces + piece);
      }
    }
    wait_for_inputs();
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t piece = first + b * a.lanes;
      if (piece < pieces) sums.add(a, batch[b], piece);
    }
  }
  wait_for_inputs();

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const long long sum = warp_sum(256LL * sums.high[r][t] + sums.low[r][t]);
      if (threadIdx.x % kWarp == 0) partial[warp][r * kTokens + t] = sum;
    }
  }
  if (a.lanes > kWarp) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  if (lane >= kValues) return;
  const uint32_t r = row + lane / kTokens;
  const uint32_t token = a.first_token + lane % kTokens;
  if (r >= a.rows || token >= a.tokens) return;
  long long sum = 0;
  for (uint32_t w = 0; w < a.lanes / kWarp; ++w) sum += partial[warp + w][lane];
  const float power = __int_as_float((a.exponents[token] + 127) << 23);
  float y = __fmul_rn(__ll2float_rn(sum), __fmul_rn(a.row_scales[r], power));
  if (a.bias != nullptr) y = __fadd_rn(y, a.bias[r]);
  a.out[static_cast<size_t>(token) * a.rows + r] = y;
}

}  // namespace

#define TANDEM_DOT(bits, format, rows, tokens, loads)                             \
  extern "C" __global__ void __launch_bounds__(kMaxThreads)                       \
      dot##bits##_rows##rows##_tokens##tokens##_loads##loads(const Arguments a) { \
    matmul<format, rows, tokens, loads>(a);                                       \
  }
#define TANDEM_DOTS(bits, format)   \
  TANDEM_DOT(bits, format, 2, 1, 4) \
  TANDEM_DOT(bits, format, 4, 1, 8) \
  TANDEM_DOT(bits, format, 2, 2, 4) \
  TANDEM_DOT(bits, format, 2, 4, 4) \
  TANDEM_DOT(bits, format, 2, 8, 4)
TANDEM_DOTS(8, kEight)
TANDEM_DOTS(4, kFour)
TANDEM_DOTS(6, kSix)
