// Any bytes as model.safetensors.index.json: refused, or a map to names that stay in the folder.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "weights/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = tandem::weights::parse_shard_index(
      std::string_view(reinterpret_cast<const char*>(data), size));
  if (!index.ok()) {
    if (index.error().message.empty()) std::abort();
    return 0;
  }
  for (const auto& [tensor, shard] : *index) {
    const std::filesystem::path path = std::filesystem::path("/folder") / shard;
    if (path.lexically_normal().parent_path() != "/folder") std::abort();
    if (shard.find('\0') != std::string::npos) std::abort();
  }
  return 0;
}
