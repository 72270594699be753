// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::weights {

/// Tensor -> name of the shard's file, from the index's "weight_map". Every file name is a plain
/// one: 1 to 255 bytes that end in ".safetensors", without '/', '\\', control characters or a
/// leading dot, so that joined to the model's folder it stays inside.
/// Errors: kInvalid (not JSON, no weight_map, a name that stands twice, a shard name that is not
/// plain), kUnsupported (more than kMaxTensors tensors or kMaxShards shards).
Result<std::map<std::string, std::string>> parse_shard_index(std::string_view json);

inline constexpr size_t kMaxShards = 4096;

}  // namespace tandem::weights
