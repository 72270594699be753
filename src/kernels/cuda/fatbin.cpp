#include "kernels/cuda/fatbin.h"

#ifdef TANDEM_CUDA_FATBIN
asm(".section .rodata\n"
    ".balign 64\n"
    "tandem_cuda_fatbin:\n"
    ".incbin \"" TANDEM_CUDA_FATBIN
    "\"\n"
    ".previous\n");
extern "C" const unsigned char tandem_cuda_fatbin[];
#endif

namespace tandem::kernels::cuda {

const void* fatbin() {
#ifdef TANDEM_CUDA_FATBIN
  return tandem_cuda_fatbin;
#else
  return nullptr;
#endif
}

}  // namespace tandem::kernels::cuda
