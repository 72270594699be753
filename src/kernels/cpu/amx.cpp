// The table of the AMX set, and its activations.
#include "kernels/cpu/amx.h"

#include "kernels/cpu/cpu_kernels.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/avx512_vector.h"
#endif

namespace tandem::kernels::cpu {

#if defined(__x86_64__) && defined(__linux__)

namespace amx {
namespace {

// arch_prctl(2); the headers of Debian 12's C library don't have it.
constexpr int kRequestPermission = 0x1023;
constexpr int kTileData = 18;

TANDEM_AVX512 void split_planes(const int16_t* values, uint32_t padded, uint8_t* low) {
  uint8_t* high = low + padded;
  for (uint32_t k = 0; k < padded; k += 32) {
    const __m512i x = _mm512_loadu_si512(values + k);
    // As in avx512_prepare.cpp: the upper byte is one more where the lower one is negative.
    const __m512i carried = _mm512_srli_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(128)), 8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(low + k), _mm512_cvtepi16_epi8(x));
    _mm256_store_si256(reinterpret_cast<__m256i*>(high + k), _mm512_cvtepi16_epi8(carried));
  }
}

void matmul(const PackedMatrix& matrix, const ActivationView& in, uint32_t tile_begin,
            uint32_t tile_end, const float* bias, float* out, size_t stride) {
  const bool tiled = in.tokens >= fewest_tokens(matrix.format);
  if (matrix.format == WeightFormat::k8) {
    (tiled ? matmul8 : avx512::matmul8)(matrix, in, tile_begin, tile_end, bias, out, stride);
  } else {
    (tiled ? matmul4 : avx512::matmul4)(matrix, in, tile_begin, tile_end, bias, out, stride);
  }
}

}  // namespace

void prepare(ActivationRows& rows, uint32_t begin, uint32_t end) {
  const size_t bytes = avx512::prepared_bytes(rows.padded);
  for (uint32_t t = begin; t < end; ++t) {
    const int16_t* values = rows.values.data() + size_t{t} * rows.padded;
    uint8_t* prepared = rows.prepared.data() + t * bytes;
    rows.sums[t] = avx512::prepare_token(values, rows.padded, prepared);
    if (rows.tokens >= kFewestTokens) {
      split_planes(values, rows.padded, prepared + avx512::copy_offset(rows.padded));
    }
  }
}

bool permitted() {
  static const bool granted = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

}  // namespace amx

const CpuKernels* amx_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels set = *avx512_kernels();
    set.isa = "amx";
    set.prepare = amx::prepare;
    set.matmul = amx::matmul;
    return set;
  }();
  return &kernels;
}

#else

const CpuKernels* amx_kernels() {
  return nullptr;
}

#endif

}  // namespace tandem::kernels::cpu
