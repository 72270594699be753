// Any bytes as a quantized checkpoint: what stands before the first NUL as config.json, the rest as
// a .safetensors file. Refused with a message, or weights of a size that fits their shapes.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>

#include "weights/dtype.h"
#include "weights/quantized.h"

using namespace tandem;
using namespace tandem::weights;

namespace {

void read_all(const Quantized& quantized) {
  for (const StoredWeight& weight : quantized.weights) {
    const auto bytes = tensor_bytes(weight.info.dtype, weight.info.shape);
    if (!bytes || *bytes != weight.info.bytes()) std::abort();
    if (*bytes > (1U << 20)) continue;
    const auto tensor = read_weight(weight);
    if (tensor.ok() && tensor->bytes.size() != *bytes) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* end = std::find(data, data + size, uint8_t{0});
  const std::string config(reinterpret_cast<const char*>(data), static_cast<size_t>(end - data));
  if (end == data + size) return 0;
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("quantized-" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(end) + 1, data + size - end - 1);
  const auto file = SafetensorsFile::open(path);
  if (!file.ok()) return 0;
  StoredTensors found;
  for (const StoredTensor& tensor : (*file)->tensors()) {
    found.emplace(tensor.name, StoredPlace{tensor, (*file)->shared_file()});
  }
  const auto quantized = read_quantized(config, found);
  if (!quantized.ok()) {
    if (quantized.error().message.empty()) std::abort();
    return 0;
  }
  read_all(*quantized);
  return 0;
}
