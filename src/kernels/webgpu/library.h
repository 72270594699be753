// Finds Dawn, the WebGPU library, when the program runs.
#pragma once

#include <string>

#include "base/result.h"
#include "kernels/webgpu/api.h"

namespace tandem::kernels::webgpu {

/// Name of the environment variable that names the library.
inline constexpr const char* kLibraryVariable = "TANDEM_WEBGPU_LIB";

/// The functions of a Dawn library: `path`, or if empty what TANDEM_WEBGPU_LIB names, or
/// libwebgpu_dawn.so or libwebgpu_wrapper.so where the system looks for libraries. It stays loaded
/// until the process ends. Errors: kNotFound (no library, with what was tried), kUnsupported (it
/// lacks a function, which is named).
Result<api::Functions> load_library(const std::string& path);

}  // namespace tandem::kernels::webgpu
