// Products of 4- and 6-bit weights with AMX: a panel of weights is expanded to 16-bit integers, in
// two planes of signed bytes, w = 256 * wh + wl, and meets both planes of every token.
//
//   sum w x = 65536 sum wh xh + 256 sum (wh xl + wl xh) + sum wl xl
//
// |wh| <= 16 and |wl|, |xh|, |xl| <= 128, so each sum holds kMaxRow columns:
// (16 + 128) * 128 * 65536 < 2^31.
#include <algorithm>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/avx512_multipliers.h"

#if defined(__x86_64__) && defined(__linux__)

namespace tandem::kernels::cpu::amx {
namespace {

using avx512::MatmulOutput;

constexpr uint32_t kPanelSteps = 8;  // of 64 columns
constexpr uint32_t kTokensAtOnce = 256;
constexpr size_t kPlaneBytes = 1024;  // of a step
constexpr __mmask64 kUpperBytes = 0xaaaaaaaaaaaaaaaa;

// A token's sums over the columns so far, 16 rows: of high times high bytes, of both mixed
// products, of low times low.
struct TokenSums {
  alignas(64) int32_t high[16];
  int32_t mixed[16];
  int32_t low[16];
};

struct Workspace {
  alignas(
      64) uint8_t panel[kPanelSteps * 2 * kPlaneBytes];  // [step][low, high][column / 4][row][4]
  TokenSums sums[kTokensAtOnce + 16];                    // of each block after the other
};

Workspace& workspace() {
  thread_local Workspace memory;
  return memory;
}

// Both bytes of each 16-bit weight q * scale - offset, even and odd columns apart, to a vector of
// four columns in each of the planes.
TANDEM_AVX512 inline void store_planes(__m512i even, __m512i odd, __m512i scale, __m512i offset,
                                       uint8_t* low, uint8_t* high) {
  const __m512i e = _mm512_sub_epi16(_mm512_mullo_epi16(even, scale), offset);
  const __m512i o = _mm512_sub_epi16(_mm512_mullo_epi16(odd, scale), offset);
  // The lower byte is a signed one: where it is negative the upper one is one more.
  const __m512i half = _mm512_set1_epi16(128);
  _mm512_store_si512(low, _mm512_mask_blend_epi8(kUpperBytes, e, _mm512_slli_epi16(o, 8)));
  _mm512_store_si512(
      high, _mm512_mask_blend_epi8(kUpperBytes, _mm512_srli_epi16(_mm512_add_epi16(e, half), 8),
                                   _mm512_add_epi16(o, half)));
}

template <WeightFormat Format>
TANDEM_AVX512 void expand(const uint8_t* tile, const PackedStep& place, uint8_t* low,
                          uint8_t* high) {
  const avx512::GroupMultipliers m = avx512::group_multipliers<Format>(tile + place.scales);
  const __m512i nibble = _mm512_set1_epi16(15);
  const __m512i top = _mm512_set1_epi16(0x30);
  for (size_t g = 0; g < 2; ++g) {
    const __m512i scale = avx512::twice(m.scale[g]);
    const __m512i offset = Format == WeightFormat::k4
                               ? _mm512_slli_epi16(avx512::twice(m.minimum[g]), 3)
                               : _mm512_slli_epi16(scale, 5);
#pragma GCC unroll 4
    for (size_t c = 0; c < 4; ++c) {
      const size_t chunk = g * 4 + c;
      const __m512i bytes = _mm512_load_si512(tile + place.low + PackedStep::low_of(Format, chunk));
      // Columns (0, 2), (1, 3), (4, 6) and (5, 7) of the chunk.
      __m512i parts[4] = {
          _mm512_and_si512(bytes, nibble), _mm512_and_si512(_mm512_srli_epi16(bytes, 8), nibble),
          _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble), _mm512_srli_epi16(bytes, 12)};
      if constexpr (Format == WeightFormat::k6) {
        const __m512i bits = _mm512_load_si512(tile + place.high + PackedStep::high_of(chunk));
        if (chunk % 2 == 0) {
          parts[0] = _mm512_or_si512(parts[0], _mm512_and_si512(_mm512_slli_epi16(bits, 4), top));
          parts[1] = _mm512_or_si512(parts[1], _mm512_and_si512(_mm512_srli_epi16(bits, 4), top));
          parts[2] = _mm512_or_si512(parts[2], _mm512_and_si512(_mm512_slli_epi16(bits, 2), top));
          parts[3] = _mm512_or_si512(parts[3], _mm512_and_si512(_mm512_srli_epi16(bits, 6), top));
        } else {
          parts[0] = _mm512_or_si512(parts[0], _mm512_and_si512(bits, top));
          parts[1] = _mm512_or_si512(parts[1], _mm512_and_si512(_mm512_srli_epi16(bits, 8), top));
          parts[2] = _mm512_or_si512(parts[2], _mm512_and_si512(_mm512_srli_epi16(bits, 2), top));
          parts[3] = _mm512_or_si512(parts[3], _mm512_and_si512(_mm512_srli_epi16(bits, 10), top));
        }
      }
      store_planes(parts[0], parts[1], scale, offset, low + chunk * 128, high + chunk * 128);
      store_planes(parts[2], parts[3], scale, offset, low + chunk * 128 + 64,
                   high + chunk * 128 + 64);
    }
  }
}

// Adds a panel's products with the tokens of a block to their sums.
void multiply(const ActivationView& in, uint32_t token, uint32_t begin, uint32_t steps,
              const uint8_t* panel, TokenSums* sums) {
  const size_t stride = avx512::prepared_bytes(in.padded);
  const uint8_t* low = plane_rows(in, token) + size_t{begin} * 64;
  const uint8_t* high = low + in.padded;
  if (begin == 0) {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
  } else {
    load_tile<0>(sums->high, sizeof(TokenSums));
    load_tile<1>(sums->mixed, sizeof(TokenSums));
    load_tile<2>(sums->low, sizeof(TokenSums));
  }
  for (size_t s = 0; s < steps; ++s, panel += 2 * kPlaneBytes) {
    load_tile<4>(low + s * 64, stride);
    load_tile<6>(panel, 64);
    add_signed<2, 4, 6>();
    load_tile<7>(panel + kPlaneBytes, 64);
    add_signed<1, 4, 7>();
    load_tile<5>(high + s * 64, stride);
    add_signed<0, 5, 7>();
    add_signed<1, 5, 6>();
  }
  store_tile<0>(sums->high, sizeof(TokenSums));
  store_tile<1>(sums->mixed, sizeof(TokenSums));
  store_tile<2>(sums->low, sizeof(TokenSums));
}

// Eight of them in 64 bits.
TANDEM_AVX512 inline __m512i widen(const int32_t* sums) {
  return _mm512_cvtepi32_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(sums)));
}

// 65536 * high + 256 * mixed + low of eight rows.
TANDEM_AVX512 inline __m512i join(const int32_t* high, const int32_t* mixed, const int32_t* low) {
  const __m512i upper = _mm512_add_epi64(_mm512_slli_epi64(widen(high), 8), widen(mixed));
  return _mm512_add_epi64(_mm512_slli_epi64(upper, 8), widen(low));
}

TANDEM_AVX512 void store(const MatmulOutput& o, uint32_t tile, uint32_t token, uint32_t tokens,
                         const TokenSums* sums) {
  for (uint32_t t = 0; t < tokens; ++t, ++sums) {
    avx512::store_rows(o, tile, token + t, join(sums->high, sums->mixed, sums->low),
                       join(sums->high + 8, sums->mixed + 8, sums->low + 8));
  }
}

// Expands `count` steps from `begin` on, and touches as many bytes that follow them: they come
// while these are expanded and multiplied.
template <WeightFormat Format>
TANDEM_AVX512 void make_panel(const PackedMatrix& matrix, uint32_t tile, uint32_t begin,
                              uint32_t count, uint8_t* panel) {
  const uint8_t* data = matrix.data.data() + tile * matrix.tile_bytes();
  const size_t bytes = count * (avx512::kStepBytes<Format> + 64);
  for (uint32_t s = 0; s < count; ++s, panel += 2 * kPlaneBytes) {
    const PackedStep place = matrix.step(begin + s);
    const uint8_t* far = data + (Format == WeightFormat::k4 ? place.low : place.high) + bytes;
    for (size_t i = 0; i < avx512::kStepBytes<Format> + 64; i += 64) avx512::touch(far + i);
    expand<Format>(data, place, panel, panel + kPlaneBytes);
  }
}

// Tokens from `first` on times a tile.
template <WeightFormat Format>
void panels(const MatmulOutput& o, uint32_t tile, uint32_t first, const TokenBlocks& blocks,
            Workspace& memory) {
  const uint32_t steps = o.in.padded / 64;
  for (uint32_t begin = 0; begin < steps; begin += kPanelSteps) {
    const uint32_t count = std::min(kPanelSteps, steps - begin);
    make_panel<Format>(o.matrix, tile, begin, count, memory.panel);
    for (uint32_t b = 0; b < blocks.count; ++b) {
      const uint32_t token = blocks.begin(b);
      multiply(o.in, first + token, begin, count, memory.panel, memory.sums + b * blocks.size);
    }
  }
  for (uint32_t b = 0; b < blocks.count; ++b) {
    store(o, tile, first + blocks.begin(b), blocks.size, memory.sums + b * blocks.size);
  }
}

template <WeightFormat Format>
void all_panels(const MatmulOutput& o, uint32_t tile_begin, uint32_t tile_end) {
  Workspace& memory = workspace();
  for (uint32_t first = 0; first < o.in.tokens; first += kTokensAtOnce) {
    const TokenBlocks blocks(std::min(kTokensAtOnce, o.in.tokens - first));
    const Tiles registers(blocks.size);
    for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
      panels<Format>(o, tile, first, blocks, memory);
    }
  }
}

}  // namespace

void matmul4(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  if (matrix.format == WeightFormat::k4) {
    all_panels<WeightFormat::k4>(o, tile_begin, tile_end);
  } else {
    all_panels<WeightFormat::k6>(o, tile_begin, tile_end);
  }
}

}  // namespace tandem::kernels::cpu::amx

#endif
