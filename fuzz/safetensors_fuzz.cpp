// Any bytes as a .safetensors file: refused, or listed with ranges that lie in the file, cover it
// exactly, and can be written and read again as the same list.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "weights/safetensors.h"

using tandem::weights::parse_safetensors;
using tandem::weights::StoredTensor;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto tensors = parse_safetensors(file, size);
  if (!tensors.ok()) {
    if (tensors.error().message.empty()) std::abort();
    return 0;
  }
  uint64_t total = 0;
  const StoredTensor* last = nullptr;
  for (const StoredTensor& tensor : *tensors) {
    if (last != nullptr && last->name >= tensor.name) std::abort();
    last = &tensor;
    if (tensor.offset > size || tensor.bytes > size - tensor.offset || tensor.bytes == 0) {
      std::abort();
    }
    uint64_t bytes = size_of(tensor.type);
    for (const uint64_t extent : tensor.shape) bytes *= extent;
    if (bytes != tensor.bytes) std::abort();
    total += tensor.bytes;
    (void)weight_info(tensor);
  }
  uint64_t header = 0;
  std::copy_n(data, 8, reinterpret_cast<uint8_t*>(&header));
  if (total != size - 8 - header) std::abort();
  return 0;
}
