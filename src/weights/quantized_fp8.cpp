// 8-bit floats with scales to groups of 32 elements.
#include <algorithm>
#include <cstring>
#include <optional>

#include "weights/block.h"
#include "weights/dtype.h"
#include "weights/printable.h"
#include "weights/quantized.h"
#include "weights/quantized_parts.h"

namespace tandem::weights {
namespace {

/// Which scale an element has: scale[row / rows_each][column / columns_each].
struct ScaleGrid {
  uint64_t rows_each = 1;
  uint64_t columns_each = 1;
  uint64_t columns = 1;  ///< of the grid

  [[nodiscard]] uint64_t index(uint64_t row, uint64_t column) const {
    return row / rows_each * columns + column / columns_each;
  }
};

uint64_t ceil_divide(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

std::optional<ScaleGrid> grid_of(const StoredTensor& scale, uint64_t rows, uint64_t columns,
                                 uint64_t block_rows, uint64_t block_columns) {
  const uint64_t elements = element_count(scale);
  if (elements == 1) return ScaleGrid{rows, columns, 1};
  const bool matrix = scale.shape.size() == 2;
  if (elements == rows && (!matrix || scale.shape[0] == rows)) return ScaleGrid{1, columns, 1};
  if (!matrix || block_rows == 0) return std::nullopt;
  if (scale.shape[0] != ceil_divide(rows, block_rows) ||
      scale.shape[1] != ceil_divide(columns, block_columns)) {
    return std::nullopt;
  }
  return ScaleGrid{block_rows, block_columns, scale.shape[1]};
}

Convert to_groups(uint64_t columns, const ScaleGrid& grid, StoredType scale_type, DType dtype) {
  return [=](std::span<const std::span<const std::byte>> pieces) -> Result<RowMaker> {
    const auto weights = pieces[0];
    const auto scales = pieces[1];
    return RowMaker([=](uint64_t first, uint64_t count, std::span<std::byte> out) {
      std::byte* at = out.data();
      for (uint64_t row = first; row < first + count; ++row) {
        for (uint64_t k = 0; k < columns; k += kGroupOfStored) {
          const float scale = stored_number(scale_type, scales, grid.index(row, k));
          std::memcpy(at, &scale, sizeof scale);
          std::memcpy(at + sizeof scale, weights.data() + row * columns + k, kGroupOfStored);
          at += block_size(dtype).bytes;
        }
      }
    });
  };
}

Convert to_floats(uint64_t columns, const ScaleGrid& grid, StoredType scale_type,
                  StoredType weight_type) {
  return [=](std::span<const std::span<const std::byte>> pieces) -> Result<RowMaker> {
    const auto weights = pieces[0];
    const auto scales = pieces[1];
    return RowMaker([=](uint64_t first, uint64_t count, std::span<std::byte> out) {
      std::byte* at = out.data();
      for (uint64_t row = first; row < first + count; ++row) {
        for (uint64_t k = 0; k < columns; ++k, at += sizeof(float)) {
          const float scale = stored_number(scale_type, scales, grid.index(row, k));
          const float value = scale * stored_number(weight_type, weights, row * columns + k);
          std::memcpy(at, &value, sizeof value);
        }
      }
    });
  };
}

}  // namespace

Status add_fp8(const StoredTensors& found, uint64_t block_rows, uint64_t block_columns,
               Quantized& result) {
  constexpr std::string_view kEnd = ".weight";
  for (const auto& [name, place] : found) {
    const StoredTensor& tensor = place.tensor;
    const bool e4m3 = tensor.type == StoredType::kF8E4M3;
    if (!e4m3 && tensor.type != StoredType::kF8E5M2) continue;
    const std::string what = "tensor " + printable(name);
    if (!name.ends_with(kEnd) || tensor.shape.size() != 2) {
      return unsupported(what + ": expected an F8 matrix named …weight, found " +
                         std::to_string(tensor.shape.size()) + " dimensions");
    }
    const StoredPlace* scale = nullptr;
    std::string scale_name;
    for (const char* suffix : {"_scale_inv", "_scale"}) {
      scale_name = name + suffix;
      if (const auto place_of = found.find(scale_name); place_of != found.end()) {
        scale = &place_of->second;
        break;
      }
    }
    if (scale == nullptr) {
      return invalid(what + ": expected its scale " + printable(name) +
                     "_scale_inv or _scale, found neither");
    }
    if (!is_scale_type(scale->tensor.type)) {
      return unsupported("tensor " + printable(scale_name) +
                         ": expected scales of a float type, found " +
                         std::string(weights::name(scale->tensor.type)));
    }
    const uint64_t rows = tensor.shape[0];
    const uint64_t columns = tensor.shape[1];
    const auto grid = grid_of(scale->tensor, rows, columns, block_rows, block_columns);
    if (!grid) {
      return invalid("tensor " + printable(scale_name) + ": expected one scale, one a row of " +
                     std::to_string(rows) + ", or one a block of " + std::to_string(block_rows) +
                     " by " + std::to_string(block_columns) + ", found " +
                     std::to_string(element_count(scale->tensor)));
    }
    StoredWeight weight;
    const bool groups = columns % kGroupOfStored == 0 &&
                        (grid->columns == 1 || grid->columns_each % kGroupOfStored == 0);
    const DType dtype = e4m3 ? DType::kE4m3Group : DType::kE5m2Group;
    weight.info = {name, groups ? dtype : DType::kF32, {rows, columns}};
    weight.convert = groups ? to_groups(columns, *grid, scale->tensor.type, dtype)
                            : to_floats(columns, *grid, scale->tensor.type, tensor.type);
    weight.pieces = {{place.file, tensor.offset, tensor.bytes},
                     {scale->file, scale->tensor.offset, scale->tensor.bytes}};
    weight.conversion =
        "fp8 " + std::to_string(grid->rows_each) + " " + std::to_string(grid->columns_each);
    weight.stored_as = std::string(weights::name(tensor.type)) +
                       (grid->columns_each < columns ? ", a scale a block"
                        : grid->rows_each == 1       ? ", a scale a row"
                                                     : ", a scale a tensor");
    if (!tensor_bytes(weight.info.dtype, weight.info.shape)) {
      return invalid(what + ": expected less than 2^63 bytes");
    }
    const std::string base = name.substr(0, name.size() - kEnd.size());
    for (const char* other : {".input_scale", ".activation_scale", ".input_scale_ub"}) {
      if (found.contains(base + other)) result.used.insert(base + other);
    }
    result.used.insert(name);
    result.used.insert(scale_name);
    result.weights.push_back(std::move(weight));
  }
  return {};
}

}  // namespace tandem::weights
