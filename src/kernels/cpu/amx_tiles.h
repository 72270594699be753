// Tile registers. As instructions, not as GCC's intrinsics, which don't say that they read and
// write memory: stores before a load could be moved behind it.
#pragma once

#if defined(__x86_64__) && defined(__linux__)

#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_matmul.h"

namespace tandem::kernels::cpu::amx {
namespace {

// The tokens of a product in blocks of at most 16, all of one size; the last two may overlap, and
// then give the same results twice.
struct TokenBlocks {
  uint32_t tokens;
  uint32_t count;
  uint32_t size;

  explicit TokenBlocks(uint32_t all)
      : tokens(all), count((all + 15) / 16), size((all + count - 1) / count) {}
  [[nodiscard]] uint32_t begin(uint32_t block) const {
    return block * size + size <= tokens ? block * size : tokens - size;
  }
};

// Sets up tiles 0 to 5 with a row a token, and 6 and 7 with 16 rows, of 64 bytes all of them; gives
// them back at the end.
class Tiles {
 public:
  explicit Tiles(uint32_t tokens) {
    struct alignas(64) Configuration {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {};
    } configuration;
    static_assert(sizeof(Configuration) == 64);
    for (int i = 0; i < 8; ++i) configuration.rows[i] = i < 6 ? static_cast<uint8_t>(tokens) : 16;
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  ~Tiles() { asm volatile("tilerelease" ::: "memory"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int Tile>
inline void load_tile(const void* rows, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
inline void store_tile(void* rows, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}

// Tile `Sum` [token][row] += activations [token][64 columns], signed, times weights
// [column / 4][row][4], unsigned.
template <int Sum, int Activations, int Weights>
inline void add_unsigned() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(Activations), "i"(Weights));
}

// The same with signed weights.
template <int Sum, int Activations, int Weights>
inline void add_signed() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(Activations), "i"(Weights));
}

// A token's low bytes; the high ones follow after in.padded.
inline const uint8_t* plane_rows(const ActivationView& in, uint32_t token) {
  return in.prepared.data() + token * avx512::prepared_bytes(in.padded) +
         avx512::copy_offset(in.padded);
}

}  // namespace
}  // namespace tandem::kernels::cpu::amx

#endif
