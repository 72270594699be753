// The compiled kernels, embedded by the build where it had CUDA's compiler.
#pragma once

namespace tandem::kernels::cuda {

/// dots.cu for several generations of GPUs; null in a build without CUDA's compiler.
const void* fatbin();

}  // namespace tandem::kernels::cuda
