// A weight as a checkpoint's reader found it: which bytes of which files, and what makes the
// tensor that a model's description names of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/mapped_file.h"
#include "weights/source.h"

namespace tandem::weights {

/// Bytes of a file.
struct FilePiece {
  std::shared_ptr<const MappedFile> file;
  uint64_t offset = 0;  ///< from the start of the file
  uint64_t bytes = 0;
};

/// Writes rows [first, first + count) of a tensor (all dimensions but the last make the rows). Rows
/// may be made by several threads at once. `out` has room for exactly these rows.
using RowMaker = std::function<void(uint64_t first, uint64_t count, std::span<std::byte> out)>;

/// Looks at the pieces' bytes and gives what makes the rows of them, or why they are wrong. The
/// bytes stay where they are as long as the RowMaker is used.
using Convert = std::function<Result<RowMaker>(std::span<const std::span<const std::byte>> pieces)>;

struct StoredWeight {
  TensorInfo info;
  std::vector<FilePiece> pieces;
  /// What is done to the bytes, in words that differ whenever the outcome may; empty: nothing, and
  /// the tensor is the one piece as it lies there.
  std::string conversion;
  Convert convert;
  /// What the file calls the weights' type, where `info.dtype` is not it: "AWQ 4 bit, groups of
  /// 128". For people.
  std::string stored_as;
};

/// The tensor's bytes. A conversion runs on several threads if the tensor is large. Errors:
/// kInvalid (a file changed, contents that a conversion refuses), kMemory; they name file and
/// tensor.
Result<TensorData> read_weight(const StoredWeight& weight);

/// Rows of a tensor: elements over those of the last dimension.
inline uint64_t row_count(const TensorInfo& info) {
  return info.shape.empty() ? 1 : info.elements() / info.shape.back();
}
inline uint64_t row_bytes(const TensorInfo& info) {
  return bytes_of(info.dtype, info.shape.empty() ? 1 : info.shape.back());
}

}  // namespace tandem::weights
