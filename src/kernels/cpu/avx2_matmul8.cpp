// Products of 8-bit weights with AVX2: weights stored as w + 128 become 16-bit integers by a mask
// and a shift, which six tokens share, and meet the 16-bit activations in vpmaddwd:
//   sum w x = sum (w + 128) x - 128 * sum x.
// A 32-bit sum holds the products of 256 columns, 256 * 255 <= kMostMagnitude.
#include "kernels/cpu/avx2_matmul.h"

#if defined(__x86_64__)

namespace tandem::kernels::cpu::avx2 {
namespace {

constexpr uint32_t kSegment = 64;  // steps of four columns
static_assert(kSegment * 4 * 255 <= kMostMagnitude);

// From so many tokens on weights are expanded first.
constexpr uint32_t kFewestPanelTokens = 24;

template <int Tokens>
TANDEM_AVX2 void block(const MatmulOutput& o, uint32_t tile, uint32_t token, const uint8_t* ahead) {
  const size_t token_bytes = prepared_bytes(o.in.padded);
  const size_t stride = token_bytes / 2;
  const auto* x = reinterpret_cast<const int16_t*>(o.in.prepared.data() + token * token_bytes +
                                                   pairs_offset(o.in.padded));
  const uint8_t* w = o.matrix.tile(tile);
  const uint32_t steps = o.in.padded / 4;
  const __m256i even = _mm256_set1_epi16(255);
  alignas(64) int32_t split[Tokens * kSplitSums] = {};
  for (uint32_t begin = 0; begin < steps; begin += kSegment) {
    const uint32_t end = begin + kSegment < steps ? begin + kSegment : steps;
    PairSums<Tokens> sums;
    sums.clear();
    for (size_t step = begin; step < end; ++step) {
      touch(ahead + step * 64);
      const __m256i first = load(w + step * 64);
      const __m256i second = load(w + step * 64 + 32);
      sums.add(_mm256_and_si256(first, even), _mm256_and_si256(second, even), x + step * 4, stride);
      sums.add(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8), x + step * 4 + 2, stride);
    }
    add_split(sums, &split[0], kSplitSums);
  }
  for (uint32_t t = 0; t < Tokens; ++t) {
    __m256i rows[4];
    join_split(&split[t * kSplitSums], 128 * o.in.sums[token + t], rows);
    store_rows(o, tile, token + t, rows);
  }
}

using Block = void (*)(const MatmulOutput&, uint32_t tile, uint32_t token, const uint8_t* ahead);
constexpr Block kBlocks[kMostTokens] = {block<1>, block<2>, block<3>, block<4>, block<5>, block<6>};

}  // namespace

void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  if (in.tokens >= kFewestPanelTokens) {
    return matmul_panels(matrix, in, tile_begin, tile_end, bias, out, stride);
  }
  const MatmulOutput o{matrix, in, bias, out, stride};
  const uint32_t most = (in.tokens + kMostTokens - 1) / kMostTokens;
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    // The first block touches the next tile; the others find everything in the cache.
    const uint8_t* ahead = in.tokens <= 2 ? matrix.tile(tile) + 4096 : matrix.tile(tile + 1);
    uint32_t token = 0;
    for (uint32_t blocks = most; blocks > 0; --blocks) {
      const uint32_t tokens = (in.tokens - token) / blocks;
      kBlocks[tokens - 1](o, tile, token, ahead);
      token += tokens;
      ahead = matrix.tile(tile);
    }
  }
}

}  // namespace tandem::kernels::cpu::avx2

#endif
