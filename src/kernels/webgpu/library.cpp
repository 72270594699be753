#include "kernels/webgpu/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace tandem::kernels::webgpu {

Result<api::Functions> load_library(const std::string& path) {
  std::vector<std::string> names;
  const char* named = std::getenv(kLibraryVariable);
  if (!path.empty()) {
    names.push_back(path);
  } else if (named != nullptr && *named != '\0') {
    names.emplace_back(named);
  } else {
    names = {"libwebgpu_dawn.so", "libwebgpu_wrapper.so"};
  }
  std::string tried;
  for (const std::string& name : names) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      tried.append(tried.empty() ? "" : "; ").append(reason != nullptr ? reason : name);
      continue;
    }
    api::Functions functions;
    std::string missing;
#define TANDEM_WEBGPU_LOAD(result, member, symbol, parameters)                       \
  functions.member = reinterpret_cast<result(*) parameters>(dlsym(library, symbol)); \
  if (functions.member == nullptr) missing.append(missing.empty() ? "" : ", ").append(symbol);
    using namespace api;
    TANDEM_WEBGPU_FUNCTIONS(TANDEM_WEBGPU_LOAD)
#undef TANDEM_WEBGPU_LOAD
    if (!missing.empty()) {
      dlclose(library);
      return unsupported(std::string("WebGPU library ").append(name).append(" has no ") + missing);
    }
    return functions;
  }
  return Error{ErrorKind::kNotFound, "no WebGPU library (" + tried + "): name Dawn's in " +
                                         std::string(kLibraryVariable)};
}

}  // namespace tandem::kernels::webgpu
