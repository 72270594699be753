// Any bytes as a manifest from a peer: refused, or read as exactly the content that would be
// written as these bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "weights/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto manifest = tandem::weights::Manifest::parse(bytes);
  if (!manifest.ok()) {
    if (manifest.error().message.empty()) std::abort();
    return 0;
  }
  if (!std::ranges::equal(manifest->serialize(), bytes)) std::abort();
  for (const auto& tensor : manifest->tensors) {
    if (manifest->find(tensor.info.name) != &tensor) std::abort();
    if (tensor.info.bytes() >> 63 != 0 || tensor.info.bytes() == 0) std::abort();
  }
  (void)model_hash(*manifest);
  return 0;
}
