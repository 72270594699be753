// Products with many tokens: a panel of weights is expanded to 16-bit integers once and meets every
// token's 16-bit activations in vpmaddwd.
//
// An activation is within 32639, so a 32-bit sum holds as many products as have weights whose
// magnitudes sum to kMostMagnitude = 65793 at most: those of 512 columns at 8 bits always
// (512 * 128), of 64 at 4 bits and 16 at 6 bits always (64 * 945, 16 * 4064) and of more mostly,
// which is looked at when they are expanded. A segment's sum is then split into its upper and lower
// 16 bits (add_split): rows of up to kMaxRow columns have at most 4096 segments.
#include "kernels/cpu/avx2_multipliers.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

constexpr uint32_t kPanelSteps = 8;  // of 64 columns: a panel of 16 rows is half the first cache
constexpr uint32_t kPairs = 32;      // of columns, in a step
constexpr uint32_t kAtOnce = 8;      // pairs of which no segment has a part
constexpr uint32_t kTokensAtOnce = 256;  // that a panel is expanded for

static_assert(kPanelSteps * 64 * 128 <= kMostMagnitude);
static_assert(64 * 945 <= kMostMagnitude && 16 * 4064 <= kMostMagnitude);

// A thread's panel, [pair][half][row 8][2], and the sums of its tokens.
struct Workspace {
  alignas(64) int16_t panel[kPanelSteps * kPairs * 32];
  alignas(64) int32_t sums[kTokensAtOnce * kSplitSums];
};

Workspace& workspace() {
  thread_local Workspace memory;
  return memory;
}

// Into the first cache.
TANDEM_AVX2 inline void touch_near(const int16_t* line) {
  asm volatile("prefetcht0 %0" : : "m"(*line));
}

// A panel: `pairs` pairs of columns, of which `segment` at a time fit a 32-bit sum.
struct Panel {
  const int16_t* weights;
  uint32_t pairs;
  uint32_t segment;
};

// The 64 columns of a tile's step and half its rows. Returns each row's sum of magnitudes.
template <WeightFormat Format>
TANDEM_AVX2 __m256i expand(const PackedMatrix& matrix, const uint8_t* tile, size_t step, int half,
                           int16_t* out) {
  const PackedStep place = matrix.step(step);
  const GroupMultipliers m = group_multipliers<Format>(tile + place.scales, half);
  const uint8_t* low = tile + place.low + half * 32;
  const uint8_t* high = tile + place.high + half * 32;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i magnitudes = _mm256_setzero_si256();
#pragma GCC unroll 2
  for (size_t g = 0; g < 2; ++g) {
    const __m256i scale = pairs(m.scale[g], m.scale[g]);
    const __m256i offset = _mm256_slli_epi16(pairs(m.minimum[g], m.minimum[g]), 3);
#pragma GCC unroll 2
    for (size_t c = 0; c < 4; c += 2) {
      __m256i some = _mm256_setzero_si256();  // eight of 4064 at most: 16 bits hold them
#pragma GCC unroll 2
      for (size_t d = 0; d < 2; ++d) {
        const size_t chunk = g * 4 + c + d;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m256i quants = quant_pair<Format>(low, high, chunk, i);
          const __m256i weights = _mm256_sub_epi16(_mm256_mullo_epi16(quants, scale), offset);
          store(out + (chunk * 4 + static_cast<size_t>(i)) * 32 + half * 16, weights);
          some = _mm256_add_epi16(some, _mm256_abs_epi16(weights));
        }
      }
      magnitudes = _mm256_add_epi32(magnitudes, _mm256_madd_epi16(some, ones));
    }
  }
  return magnitudes;
}

TANDEM_AVX2 inline int32_t largest(__m256i x) {
  int32_t lanes[8];
  store(lanes, x);
  int32_t most = lanes[0];
  for (const int32_t lane : lanes) most = lane > most ? lane : most;
  return most;
}

// The most steps, a power of two, whose products a 32-bit sum holds from any multiple of it on; 0
// if there are steps whose products it does not hold.
TANDEM_AVX2 uint32_t steps_together(const __m256i (*magnitudes)[2], uint32_t steps) {
  for (uint32_t together = kPanelSteps; together > 0; together /= 2) {
    __m256i most = _mm256_setzero_si256();
    for (uint32_t begin = 0; begin < steps; begin += together) {
      __m256i sum[2] = {magnitudes[begin][0], magnitudes[begin][1]};
      for (uint32_t s = begin + 1; s < begin + together && s < steps; ++s) {
        sum[0] = _mm256_add_epi32(sum[0], magnitudes[s][0]);
        sum[1] = _mm256_add_epi32(sum[1], magnitudes[s][1]);
      }
      most = _mm256_max_epi32(most, _mm256_max_epi32(sum[0], sum[1]));
    }
    if (largest(most) <= kMostMagnitude) return together;
  }
  return 0;
}

// Expands steps [begin, begin + steps).
template <WeightFormat Format>
TANDEM_AVX2 Panel make_panel(const PackedMatrix& matrix, uint32_t tile, uint32_t begin,
                             uint32_t steps, int16_t* weights) {
  Panel panel{weights, steps * kPairs, steps * kPairs};
  const uint8_t* data = matrix.tile(tile);
  if constexpr (Format == WeightFormat::k8) {
    const __m256i even = _mm256_set1_epi16(255);
    const __m256i offset = _mm256_set1_epi16(128);
    const uint8_t* lines = data + size_t{begin} * 1024;
    for (size_t line = 0; line < size_t{steps} * 16; ++line) {
      for (size_t half = 0; half < 2; ++half) {
        const __m256i bytes = load(lines + line * 64 + half * 32);
        int16_t* out = weights + line * 64 + half * 16;
        store(out, _mm256_sub_epi16(_mm256_and_si256(bytes, even), offset));
        store(out + 32, _mm256_sub_epi16(_mm256_srli_epi16(bytes, 8), offset));
      }
    }
  } else {
    __m256i magnitudes[kPanelSteps][2];
    for (uint32_t s = 0; s < steps; ++s) {
      for (int half = 0; half < 2; ++half) {
        magnitudes[s][half] =
            expand<Format>(matrix, data, begin + s, half, weights + size_t{s} * kPairs * 32);
      }
    }
    const uint32_t together = steps_together(magnitudes, steps);
    if (together != 0) {
      panel.segment = together * kPairs;
    } else {
      panel.segment = Format == WeightFormat::k4 ? kPairs : kAtOnce;
    }
  }
  return panel;
}

// Adds a panel's products with `Tokens` tokens, `stride` values apart, to their sums. `ahead`:
// those of the tokens that are next, which come into the first cache meanwhile.
template <int Tokens>
TANDEM_AVX2 void multiply(const Panel& panel, const int16_t* x, const int16_t* ahead, size_t stride,
                          int32_t* sums) {
  for (uint32_t begin = 0; begin < panel.pairs; begin += panel.segment) {
    const uint32_t end = begin + panel.segment < panel.pairs ? begin + panel.segment : panel.pairs;
    PairSums<Tokens> some;
    some.clear();
    for (size_t line = begin; line < end; line += kAtOnce) {
#pragma GCC unroll 6
      for (size_t t = 0; t < Tokens; ++t) touch_near(ahead + t * stride + line * 2);
      for (size_t p = line; p < line + kAtOnce; p += 2) {
#pragma GCC unroll 2
        for (size_t i = p; i < p + 2; ++i) {
          some.add(load(panel.weights + i * 32), load(panel.weights + i * 32 + 16), x + i * 2,
                   stride);
        }
      }
    }
    add_split(some, sums, kSplitSums);
  }
}

using Multiply = void (*)(const Panel&, const int16_t*, const int16_t*, size_t, int32_t*);
constexpr Multiply kMultiply[kMostTokens] = {multiply<1>, multiply<2>, multiply<3>,
                                             multiply<4>, multiply<5>, multiply<6>};

// What the next panel is made of, touched while this one is multiplied, a part by each block of
// tokens: all at once would wait for memory.
struct NextPanel {
  const uint8_t* data;
  size_t lines;

  NextPanel(const PackedMatrix& matrix, uint32_t tile, uint32_t begin) {
    const size_t all = padded_columns(matrix.columns) / kColumnPad;
    const size_t bytes = matrix.tile_bytes();
    const size_t end = begin + kPanelSteps < all ? begin + kPanelSteps : all;
    data = matrix.tile(tile) + bytes * begin / all;
    lines = bytes * (end - begin) / all / 64 + 1;
  }

  TANDEM_AVX2 void touch_part(size_t part, size_t parts) const {
    const size_t end = lines * (part + 1) / parts;
    for (size_t i = lines * part / parts; i < end; ++i) touch(data + i * 64);
  }
};

template <WeightFormat Format>
TANDEM_AVX2 void panels(const MatmulOutput& o, uint32_t tile, uint32_t token, uint32_t tokens) {
  Workspace& memory = workspace();
  std::memset(memory.sums, 0, size_t{tokens} * kSplitSums * sizeof(int32_t));
  const uint32_t steps = o.in.padded / 64;
  const size_t token_bytes = prepared_bytes(o.in.padded);
  for (uint32_t begin = 0; begin < steps; begin += kPanelSteps) {
    const uint32_t count = steps - begin < kPanelSteps ? steps - begin : kPanelSteps;
    const Panel panel = make_panel<Format>(o.matrix, tile, begin, count, memory.panel);
    const NextPanel next = begin + count < steps ? NextPanel(o.matrix, tile, begin + count)
                                                 : NextPanel(o.matrix, tile + 1, 0);
    const uint32_t blocks = (tokens + kMostTokens - 1) / kMostTokens;
    uint32_t t = 0;
    for (uint32_t b = 0; b < blocks; ++b) {
      const uint32_t some = (tokens - t) / (blocks - b);
      next.touch_part(b, blocks);
      const uint8_t* prepared = o.in.prepared.data() + (token + t) * token_bytes;
      const auto* x = reinterpret_cast<const int16_t*>(prepared + pairs_offset(o.in.padded)) +
                      size_t{begin} * 64;
      const auto* ahead = t + some < tokens ? x + some * (token_bytes / 2) : x;
      kMultiply[some - 1](panel, x, ahead, token_bytes / 2, memory.sums + size_t{t} * kSplitSums);
      t += some;
    }
  }
  for (uint32_t t = 0; t < tokens; ++t) {
    __m256i rows[4];
    join_split(memory.sums + size_t{t} * kSplitSums, 0, rows);
    store_rows(o, tile, token + t, rows);
  }
}

template <WeightFormat Format>
void all_panels(const MatmulOutput& o, uint32_t tile_begin, uint32_t tile_end) {
  for (uint32_t token = 0; token < o.in.tokens; token += kTokensAtOnce) {
    const uint32_t tokens =
        o.in.tokens - token < kTokensAtOnce ? o.in.tokens - token : kTokensAtOnce;
    for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
      panels<Format>(o, tile, token, tokens);
    }
  }
}

}  // namespace

void matmul_panels(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                   uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  switch (matrix.format) {
    case WeightFormat::k8:
      return all_panels<WeightFormat::k8>(o, tile_begin, tile_end);
    case WeightFormat::k4:
      return all_panels<WeightFormat::k4>(o, tile_begin, tile_end);
    case WeightFormat::k6:
      return all_panels<WeightFormat::k6>(o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::avx2

#endif
