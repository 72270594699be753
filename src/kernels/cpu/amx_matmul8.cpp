// Products of 8-bit weights with AMX: the sums of avx512_matmul8.cpp, 16 tokens and 32 rows at
// once. A packed tile's 64 columns are a tile register's rows as they lie.
#include <algorithm>

#include "kernels/cpu/amx_tiles.h"

#if defined(__x86_64__) && defined(__linux__)

namespace tandem::kernels::cpu::amx {
namespace {

using avx512::MatmulOutput;

// The order of the loops: a group of tiles, which stay in the second cache, meets a block of
// tokens, whose bytes of some columns stay in the first.
constexpr uint64_t kGroupBytes = uint64_t{256} << 10;
constexpr uint32_t kColumnsAtOnce = 512;

// Sums of low and high bytes of two tiles, [token][row].
struct Sums {
  alignas(64) int32_t low[2][16 * 16];
  alignas(64) int32_t high[2][16 * 16];
};
// Of the pairs of a group whose rows are longer than kColumnsAtOnce: tiles of more than 8 KB.
constexpr uint32_t kMostPairs = kGroupBytes / (kColumnsAtOnce * kTileRows) / 2;

Sums* sums_of_group() {
  thread_local Sums sums[kMostPairs];
  return sums;
}

// Where cache lines lie that are read in a while, from those that are read now, and which ones of
// the 32 of a step a block of tokens touches.
struct Touched {
  uint64_t distance;
  uint32_t first;
  uint32_t last;
};

// Rows of results that have their sums: vector instructions, done between the tile instructions of
// the next sums, which don't use them.
class Pending {
 public:
  void add(const MatmulOutput& o, uint32_t tile, uint32_t tiles, uint32_t token, uint32_t tokens,
           const Sums& sums) {
    o_ = &o;
    sums_ = &sums;
    tile_ = tile;
    token_ = token;
    tokens_ = tokens;
    left_ = tiles * tokens;
  }
  [[nodiscard]] uint32_t left() const { return left_; }

  TANDEM_AVX512 void store(uint32_t count) {
    for (; count != 0 && left_ != 0; --count) {
      --left_;
      const uint32_t r = left_ >= tokens_ ? 1 : 0;
      const uint32_t t = left_ - r * tokens_;
      const __m512i offset = _mm512_set1_epi64(128 * o_->in.sums[token_ + t]);
      const __m512i l = _mm512_load_si512(sums_->low[r] + t * 16);
      const __m512i h = _mm512_load_si512(sums_->high[r] + t * 16);
      const __m512i first =
          avx512::combine_planes(_mm512_castsi512_si256(l), _mm512_castsi512_si256(h));
      const __m512i second =
          avx512::combine_planes(_mm512_extracti64x4_epi64(l, 1), _mm512_extracti64x4_epi64(h, 1));
      avx512::store_rows(*o_, tile_ + r, token_ + t, _mm512_sub_epi64(first, offset),
                         _mm512_sub_epi64(second, offset));
    }
  }

 private:
  const MatmulOutput* o_ = nullptr;
  const Sums* sums_ = nullptr;
  uint32_t tile_ = 0;
  uint32_t token_ = 0;
  uint32_t tokens_ = 0;
  uint32_t left_ = 0;
};

template <int Count>
TANDEM_AVX512 void multiply(const MatmulOutput& o, uint32_t tile, uint32_t token, uint32_t begin,
                            uint32_t end, const Touched& touched, Pending& pending, Sums& sums) {
  const size_t stride = avx512::prepared_bytes(o.in.padded);
  const uint8_t* low = plane_rows(o.in, token);
  const uint8_t* high = low + o.in.padded;
  const uint8_t* w = o.matrix.tile(tile);
  const size_t tile_bytes = o.matrix.tile_bytes();
  const uint32_t steps = (end - begin) / 64;
  const uint32_t stored = (pending.left() + steps - 1) / steps;
  if (begin == 0) {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
  } else {
    load_tile<0>(sums.low[0], 64);
    load_tile<1>(sums.high[0], 64);
    load_tile<2>(sums.low[1], 64);
    load_tile<3>(sums.high[1], 64);
  }
  for (size_t k = begin; k < end; k += 64) {
    load_tile<6>(w + k * 16, 64);
    load_tile<4>(low + k, stride);
    add_unsigned<0, 4, 6>();
    load_tile<5>(high + k, stride);
    add_unsigned<1, 5, 6>();
    if constexpr (Count == 2) {
      load_tile<7>(w + tile_bytes + k * 16, 64);
      add_unsigned<2, 4, 7>();
      add_unsigned<3, 5, 7>();
    }
    pending.store(stored);
    const uint8_t* far = w + touched.distance + k * 16;
    for (uint32_t line = touched.first; line < touched.last; ++line) {
      avx512::touch(far + (line % 16) * 64 + (line / 16) * tile_bytes);
    }
  }
  store_tile<0>(sums.low[0], 64);
  store_tile<1>(sums.high[0], 64);
  store_tile<2>(sums.low[1], 64);
  store_tile<3>(sums.high[1], 64);
}

}  // namespace

void matmul8(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
             uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const MatmulOutput o{matrix, in, bias, out, stride};
  const TokenBlocks blocks(in.tokens);
  const Tiles registers(blocks.size);
  Sums* const sums = sums_of_group();
  Pending pending;
  const bool whole = in.padded <= kColumnsAtOnce;
  const auto group =
      std::max<uint32_t>(2, static_cast<uint32_t>(kGroupBytes / matrix.tile_bytes()) / 2 * 2);
  for (uint32_t first = tile_begin; first < tile_end; first += group) {
    const uint32_t last = std::min(first + group, tile_end);
    for (uint32_t b = 0; b < blocks.count; ++b) {
      const uint32_t token = blocks.begin(b);
      const Touched touched{uint64_t{last - first} * matrix.tile_bytes(), 32 * b / blocks.count,
                            32 * (b + 1) / blocks.count};
      for (uint32_t k = 0; k < in.padded; k += kColumnsAtOnce) {
        const uint32_t end = std::min(k + kColumnsAtOnce, in.padded);
        for (uint32_t tile = first; tile < last; tile += 2) {
          const uint32_t tiles = std::min(last - tile, 2U);
          // Two in turn where each is stored at once, while the next one is summed.
          Sums& pair = sums[whole ? tile / 2 % 2 : (tile - first) / 2];
          (tiles == 2 ? multiply<2> : multiply<1>)(o, tile, token, k, end, touched, pending, pair);
          if (end == in.padded) pending.add(o, tile, tiles, token, blocks.size, pair);
        }
      }
    }
  }
  pending.store(pending.left());
}

}  // namespace tandem::kernels::cpu::amx

#endif
