// The WGSL files of this folder, embedded by the build.
#pragma once

#include <string_view>

namespace tandem::kernels::webgpu {

/// The text of NAME.wgsl; empty if there is none.
std::string_view shader(std::string_view name);

}  // namespace tandem::kernels::webgpu
