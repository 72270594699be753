// What a GGUF file's converter changed, undone: bytes of a file to bytes of a tensor.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "weights/gguf_families.h"
#include "weights/stored_weight.h"

namespace tandem::weights {

/// Counts that changes depend on; 0 where a model has none.
struct GgufShapes {
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t key_heads = 0;    ///< of a delta net
  uint64_t value_heads = 0;  ///< of a delta net, a multiple of key_heads
  uint64_t key_dim = 0;
  uint64_t value_dim = 0;
};

/// Sets `weight`'s info, conversion and convert; before, its info is the stored tensor's under the
/// new name. Changes that take other than one tensor to one are left alone. Errors: kInvalid (a
/// shape that the change does not fit); they don't name the tensor.
Status undo_change(GgufChange change, const GgufShapes& shapes, StoredWeight& weight);

/// One weight of two, whose rows (a vector's elements) alternate: [experts, 2 rows, columns] from
/// twice [experts, rows, columns], or [experts, 2 elements]. Error kInvalid: shapes or types
/// differ.
Result<StoredWeight> interleave(const StoredWeight& even, const StoredWeight& odd);

}  // namespace tandem::weights
