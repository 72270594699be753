// Any bytes as config.json: refused with a message, or a model whose layers, tensors and rotations
// can be named without a step beyond their bounds.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/layer.h"
#include "model/rope_config.h"
#include "model/stage.h"

namespace model = tandem::model;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto config = model::parse_config(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) {
    if (config.error().message.empty()) std::abort();
    return 0;
  }
  if (config->layers == 0 || config->window.size() != config->layers ||
      config->layer_rope.size() != config->layers || config->heads % config->kv_heads != 0) {
    std::abort();
  }
  model::resolve_prefix(*config, [](std::string_view name) { return name.size() % 3 == 0; });
  for (const model::RopeConfig* rope : {&config->rope, &config->local_rope}) {
    if (!rope->enabled) continue;
    std::vector<tandem::arithmetic::Rotation> rotations;
    model::Rope(*rope, config->head_dim, true).rotations(1, 2, rotations);
    if (rotations.size() != size_t{config->head_dim / 2} * 2) std::abort();
  }
  if (model::layer_tensors(*config, 0, 1).empty() || model::ends_tensors(*config).empty()) {
    std::abort();
  }
  return 0;
}
