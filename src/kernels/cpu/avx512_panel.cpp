// Products of 4- and 6-bit weights with many tokens: a panel of weights is expanded to 16-bit
// integers once and meets every token's 16-bit activations as they are.
//
// An activation is within 32639, so a 32-bit sum holds as many products as have weights whose
// magnitudes sum to 65793 at most: those of 64 columns at 4 bits and 16 at 6 bits always (64 * 945,
// 16 * 4064), those of a whole panel mostly, which is looked at when it is expanded. Such a
// segment's sum is split into its upper and lower 16 bits, which add up in 32 bits over rows of up
// to kMaxRow columns (at most 4096 segments: 4096 * 65535 < 2^31).
#include "kernels/cpu/avx512_multipliers.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx512 {
namespace {

constexpr uint32_t kPanelSteps = 4;      // of 64 columns
constexpr uint32_t kPairs = 32;          // of columns, in a step
constexpr uint32_t kMostTokens = 12;     // in registers at once
constexpr uint32_t kMostTiles = 2;       // in a panel
constexpr uint32_t kTokensAtOnce = 256;  // that a panel is expanded for
constexpr __mmask32 kUpperHalves = 0xaaaaaaaa;

// Magnitudes of weights that a 32-bit sum holds products of, and pairs that always keep to it.
constexpr int32_t kMostMagnitude = INT32_MAX / arithmetic::kMaxActivation;
template <WeightFormat Format>
constexpr uint32_t kSafePairs = Format == WeightFormat::k4 ? 32 : 8;
static_assert(64 * 945 <= kMostMagnitude && 16 * 4064 <= kMostMagnitude);

// A thread's panel, and the sums of its tokens: upper and lower parts.
struct Workspace {
  alignas(64) int16_t panel[kPanelSteps * kPairs * kMostTiles * 32];
  alignas(64) int32_t sums[kTokensAtOnce * kMostTiles * 2 * 16];
};

Workspace& workspace() {
  thread_local Workspace memory;
  return memory;
}

// Columns 2i and 2i + 1 of 16 rows as 32-bit pairs, from 16-bit pairs of columns (0, 2) and (1, 3).
TANDEM_AVX512 inline void interleave(__m512i even, __m512i odd, __m512i& first, __m512i& second) {
  first = _mm512_mask_blend_epi16(kUpperHalves, even, _mm512_slli_epi32(odd, 16));
  second = _mm512_mask_blend_epi16(kUpperHalves, _mm512_srli_epi32(even, 16), odd);
}

// The 64 columns of a tile's step as 32 vectors of 16-bit pairs, `stride` vectors apart. Returns
// each row's sum of magnitudes.
template <WeightFormat Format>
TANDEM_AVX512 __m512i expand(const uint8_t* tile, uint32_t steps, size_t step, int16_t* out,
                             size_t stride) {
  const PackedStep place = PackedStep::at(Format, steps, step);
  const uint8_t* low = tile + place.low;
  const uint8_t* high = tile + place.high;
  const GroupMultipliers m = group_multipliers<Format>(tile + place.scales);
  const __m512i nibble = _mm512_set1_epi16(15);
  const __m512i top = _mm512_set1_epi16(0x30);
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i magnitudes = _mm512_setzero_si512();
  for (int g = 0; g < 2; ++g) {
    const __m512i scale = twice(m.scale[g]);
    const __m512i offset = Format == WeightFormat::k4 ? _mm512_slli_epi16(twice(m.minimum[g]), 3)
                                                      : _mm512_slli_epi16(scale, 5);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const size_t chunk = static_cast<size_t>(g) * 4 + static_cast<size_t>(c);
      const __m512i bytes = _mm512_load_si512(low + PackedStep::low_of(Format, chunk));
      // Columns (0, 2), (4, 6), (1, 3) and (5, 7) of the chunk.
      __m512i pairs[4] = {
          _mm512_and_si512(bytes, nibble), _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble),
          _mm512_and_si512(_mm512_srli_epi16(bytes, 8), nibble), _mm512_srli_epi16(bytes, 12)};
      if constexpr (Format == WeightFormat::k6) {
        const __m512i bits = _mm512_load_si512(high + PackedStep::high_of(chunk));
        __m512i parts[4];
        if (chunk % 2 == 0) {
          parts[0] = _mm512_slli_epi16(bits, 4);
          parts[1] = _mm512_slli_epi16(bits, 2);
          parts[2] = _mm512_srli_epi16(bits, 4);
          parts[3] = _mm512_srli_epi16(bits, 6);
        } else {
          parts[0] = bits;
          parts[1] = _mm512_srli_epi16(bits, 2);
          parts[2] = _mm512_srli_epi16(bits, 8);
          parts[3] = _mm512_srli_epi16(bits, 10);
        }
        for (int i = 0; i < 4; ++i) {
          pairs[i] = _mm512_or_si512(pairs[i], _mm512_and_si512(parts[i], top));
        }
      }
      __m512i ordered[4];
      interleave(pairs[0], pairs[2], ordered[0], ordered[1]);
      interleave(pairs[1], pairs[3], ordered[2], ordered[3]);
      for (int i = 0; i < 4; ++i) {
        const __m512i weights = _mm512_sub_epi16(_mm512_mullo_epi16(ordered[i], scale), offset);
        _mm512_store_si512(out + (static_cast<size_t>(chunk) * 4 + i) * stride * 32, weights);
        add_pairs(magnitudes, _mm512_abs_epi16(weights), ones);
      }
    }
  }
  return magnitudes;
}

// A panel: `pairs` pairs of columns, of which `segment` at a time fit a 32-bit sum.
struct Panel {
  const int16_t* weights;
  uint32_t pairs;
  uint32_t segment;
};

// Adds a panel's products with `Tokens` tokens to their sums.
template <int Tokens, int Tiles>
TANDEM_AVX512 void multiply(const Panel& panel, const int16_t* x, size_t stride, int32_t* sums) {
  const __m512i half = _mm512_set1_epi32(0xffff);
  for (uint32_t begin = 0; begin < panel.pairs; begin += panel.segment) {
    __m512i sum[Tokens][Tiles];
#pragma GCC unroll 12
    for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 2
      for (int r = 0; r < Tiles; ++r) sum[t][r] = _mm512_setzero_si512();
    }
    for (uint32_t p = begin; p < begin + panel.segment; p += 2) {
#pragma GCC unroll 2
      for (uint32_t i = 0; i < 2; ++i) {
        __m512i weights[Tiles];
#pragma GCC unroll 2
        for (int r = 0; r < Tiles; ++r) {
          weights[r] = _mm512_load_si512(panel.weights + (size_t{p + i} * Tiles + r) * 32);
        }
#pragma GCC unroll 12
        for (int t = 0; t < Tokens; ++t) {
          const __m512i values = broadcast4(
              reinterpret_cast<const uint8_t*>(x + static_cast<size_t>(t) * stride + 2 * (p + i)));
#pragma GCC unroll 2
          for (int r = 0; r < Tiles; ++r) add_pairs(sum[t][r], weights[r], values);
        }
      }
    }
#pragma GCC unroll 12
    for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 2
      for (int r = 0; r < Tiles; ++r) {
        int32_t* place = sums + (t * Tiles + r) * 32;
        _mm512_store_si512(
            place, _mm512_add_epi32(_mm512_load_si512(place), _mm512_srai_epi32(sum[t][r], 16)));
        _mm512_store_si512(place + 16, _mm512_add_epi32(_mm512_load_si512(place + 16),
                                                        _mm512_and_si512(sum[t][r], half)));
      }
    }
  }
}

// 65536 * upper + lower of eight rows, in 64 bits.
TANDEM_AVX512 inline __m512i join(const int32_t* upper, const int32_t* lower) {
  const __m512i u =
      _mm512_cvtepi32_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(upper)));
  const __m512i l =
      _mm512_cvtepi32_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(lower)));
  return _mm512_add_epi64(_mm512_slli_epi64(u, 16), l);
}

// Expands `steps` steps of `Tiles` tiles.
template <WeightFormat Format, int Tiles>
TANDEM_AVX512 Panel make_panel(const PackedMatrix& matrix, uint32_t tile, uint32_t begin,
                               uint32_t steps, int16_t* weights) {
  __m512i most = _mm512_setzero_si512();
  __m512i total[Tiles];
  for (int r = 0; r < Tiles; ++r) total[r] = _mm512_setzero_si512();
  for (uint32_t s = 0; s < steps; ++s) {
    for (uint32_t r = 0; r < Tiles; ++r) {
      const __m512i magnitudes =
          expand<Format>(matrix.tile(tile + r), padded_columns(matrix.columns) / kColumnPad,
                         begin + s, weights + (size_t{s} * kPairs * Tiles + r) * 32, Tiles);
      most = _mm512_max_epi32(most, magnitudes);
      total[r] = _mm512_add_epi32(total[r], magnitudes);
    }
  }
  __m512i whole = total[0];
  for (int r = 1; r < Tiles; ++r) whole = _mm512_max_epi32(whole, total[r]);
  Panel panel{weights, steps * kPairs, kSafePairs<Format>};
  if (_mm512_reduce_max_epi32(whole) <= kMostMagnitude) {
    panel.segment = panel.pairs;
  } else if (_mm512_reduce_max_epi32(most) <= kMostMagnitude) {
    panel.segment = kPairs;
  }
  return panel;
}

// Touches what a panel is made of, so that it comes while the one before is multiplied.
template <WeightFormat Format, int Tiles>
TANDEM_AVX512 void touch_panel(const PackedMatrix& matrix, uint32_t tile, uint32_t begin,
                               uint32_t steps) {
  const size_t from = matrix.step(begin).scales;
  const size_t to = matrix.step(begin + steps - 1).low + kStepBytes<Format>;
  for (uint32_t r = 0; r < Tiles; ++r) {
    const uint8_t* data = matrix.tile(tile + r);
    for (size_t i = from / 64 * 64; i < to; i += 64) touch(data + i);
  }
}

template <WeightFormat Format, int Tiles>
TANDEM_AVX512 void panels(const MatmulOutput& o, uint32_t tile, uint32_t token, uint32_t tokens) {
  using Multiply = void (*)(const Panel&, const int16_t*, size_t, int32_t*);
  static constexpr Multiply kMultiply[kMostTokens] = {
      multiply<1, Tiles>, multiply<2, Tiles>,  multiply<3, Tiles>,  multiply<4, Tiles>,
      multiply<5, Tiles>, multiply<6, Tiles>,  multiply<7, Tiles>,  multiply<8, Tiles>,
      multiply<9, Tiles>, multiply<10, Tiles>, multiply<11, Tiles>, multiply<12, Tiles>};
  Workspace& memory = workspace();
  std::memset(memory.sums, 0, size_t{tokens} * Tiles * 128);
  const uint32_t steps = o.in.padded / 64;
  const size_t token_bytes = prepared_bytes(o.in.padded);
  for (uint32_t begin = 0; begin < steps; begin += kPanelSteps) {
    const uint32_t count = steps - begin < kPanelSteps ? steps - begin : kPanelSteps;
    const Panel panel = make_panel<Format, Tiles>(o.matrix, tile, begin, count, memory.panel);
    if (begin + count < steps) {
      touch_panel<Format, Tiles>(o.matrix, tile, begin + count, kPanelSteps);
    } else {
      touch_panel<Format, Tiles>(o.matrix, tile + Tiles, 0, kPanelSteps);
    }
    uint32_t blocks = (tokens + kMostTokens - 1) / kMostTokens;
    for (uint32_t t = 0; t < tokens; --blocks) {
      const uint32_t some = (tokens - t) / blocks;
      const uint8_t* prepared = o.in.prepared.data() + (token + t) * token_bytes;
      const auto* x = reinterpret_cast<const int16_t*>(prepared + copy_offset(o.in.padded)) +
                      size_t{begin} * 64;
      kMultiply[some - 1](panel, x, token_bytes / 2, memory.sums + size_t{t} * Tiles * 32);
      t += some;
    }
  }
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t r = 0; r < Tiles; ++r) {
      const int32_t* upper = memory.sums + (size_t{t} * Tiles + r) * 32;
      const int32_t* lower = upper + 16;
      store_rows(o, tile + r, token + t, join(upper, lower), join(upper + 8, lower + 8));
    }
  }
}

template <WeightFormat Format>
void all_panels(const MatmulOutput& o, uint32_t tile_begin, uint32_t tile_end) {
  for (uint32_t token = 0; token < o.in.tokens; token += kTokensAtOnce) {
    const uint32_t tokens =
        o.in.tokens - token < kTokensAtOnce ? o.in.tokens - token : kTokensAtOnce;
    uint32_t tile = tile_begin;
    for (; tile + 2 <= tile_end; tile += 2) panels<Format, 2>(o, tile, token, tokens);
    if (tile < tile_end) panels<Format, 1>(o, tile, token, tokens);
  }
}

}  // namespace

void matmul_panels(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
                   uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  if (matrix.format == WeightFormat::k4) {
    all_panels<WeightFormat::k4>(o, tile_begin, tile_end);
  } else {
    all_panels<WeightFormat::k6>(o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::avx512

#endif
