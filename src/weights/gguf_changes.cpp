#include "weights/gguf_changes.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic/rope.h"
#include "weights/dtype.h"

namespace tandem::weights {
namespace {

using Pieces = std::span<const std::span<const std::byte>>;
using Order = std::function<uint64_t(uint64_t)>;  ///< the file's row of a row of the model

/// Rows (of a vector elements) in another order.
Convert reorder(const TensorInfo& info, Order order) {
  const bool vector = info.shape.size() == 1;
  const uint64_t width = vector ? bytes_of(info.dtype, 1) : row_bytes(info);
  const uint64_t all = vector ? info.shape[0] : 0;
  return [=, order = std::move(order)](Pieces pieces) -> Result<RowMaker> {
    return RowMaker(
        [=, from = pieces[0]](uint64_t first, uint64_t count, std::span<std::byte> out) {
          const uint64_t begin = vector ? 0 : first;
          const uint64_t rows = vector ? all : count;
          for (uint64_t i = 0; i < rows; ++i) {
            const auto row = from.subspan(order(begin + i) * width, width);
            std::memcpy(out.data() + i * width, row.data(), width);
          }
        });
  };
}

/// Every element through a function, the whole tensor at once: for vectors.
Convert each(const TensorInfo& info,
             std::function<Result<float>(std::span<const float>, size_t)> f) {
  const DType dtype = info.dtype;
  const uint64_t count = info.elements();
  return [=, f = std::move(f)](Pieces pieces) -> Result<RowMaker> {
    std::vector<float> values(count);
    TANDEM_TRY(widen(dtype, pieces[0], values));
    std::vector<float> changed;
    for (size_t i = 0; i < values.size(); ++i) {
      TANDEM_ASSIGN(const float value, f(values, i));
      changed.push_back(value);
    }
    return RowMaker([changed = std::move(changed)](uint64_t, uint64_t, std::span<std::byte> out) {
      std::memcpy(out.data(), changed.data(), out.size());
    });
  };
}

/// `stored` is [rows, columns]; the result [columns, rows] in binary32.
Convert transpose(const TensorInfo& stored) {
  const DType dtype = stored.dtype;
  const uint64_t rows = stored.shape[0];
  const uint64_t columns = stored.shape[1];
  return [=](Pieces pieces) -> Result<RowMaker> {
    return RowMaker([=, from = pieces[0]](uint64_t first, uint64_t count,
                                          std::span<std::byte> out) {
      std::vector<float> row(columns);
      for (uint64_t r = 0; r < rows; ++r) {
        (void)widen(dtype, from.subspan(bytes_of(dtype, r * columns), bytes_of(dtype, columns)),
                    row);
        for (uint64_t k = 0; k < count; ++k) {
          std::memcpy(out.data() + (k * rows + r) * sizeof(float), &row[first + k], sizeof(float));
        }
      }
    });
  };
}

/// Groups of `width` columns in another order, in binary32: they need not be whole blocks.
Convert reorder_columns(const TensorInfo& stored, uint64_t width, Order order) {
  const DType dtype = stored.dtype;
  const uint64_t columns = stored.shape[1];
  return [=, order = std::move(order)](Pieces pieces) -> Result<RowMaker> {
    return RowMaker([=, from = pieces[0]](uint64_t first, uint64_t count,
                                          std::span<std::byte> out) {
      std::vector<float> row(columns);
      for (uint64_t r = 0; r < count; ++r) {
        (void)widen(dtype,
                    from.subspan(bytes_of(dtype, (first + r) * columns), bytes_of(dtype, columns)),
                    row);
        for (uint64_t group = 0; group < columns / width; ++group) {
          std::memcpy(out.data() + (r * columns + group * width) * sizeof(float),
                      &row[order(group) * width], width * sizeof(float));
        }
      }
    });
  };
}

/// In the order of rotary pairs: the file has the two of each pair side by side.
Order unpaired(uint64_t head_rows) {
  return [=](uint64_t row) {
    const uint64_t within = row % head_rows;
    const uint64_t half = head_rows / 2;
    return row - within + (within % half) * 2 + within / half;
  };
}

/// A value head's place: the model has those of a key head side by side, the file their first ones
/// of all key heads, then the second ones.
Order value_heads(const GgufShapes& shapes) {
  const uint64_t each_key = shapes.value_heads / shapes.key_heads;
  return [=, keys = shapes.key_heads](uint64_t head) {
    return head % each_key * keys + head / each_key;
  };
}

Status expect(bool fits, const std::string& what) {
  if (fits) return {};
  return invalid("expected " + what);
}

Status unpair(GgufChange change, const GgufShapes& shapes, StoredWeight& weight) {
  const TensorInfo& info = weight.info;
  const uint64_t heads = change == GgufChange::kPairedQuery ? shapes.heads : shapes.kv_heads;
  const bool plain = info.shape.size() != 1 || block_size(info.dtype).elements == 1;
  TANDEM_TRY(expect(heads != 0 && plain && info.shape.front() % (2 * heads) == 0,
                    "rows for " + std::to_string(heads) + " heads of even size, found " +
                        std::to_string(info.shape.front())));
  const uint64_t head_rows = info.shape.front() / heads;
  weight.convert = reorder(info, unpaired(head_rows));
  weight.conversion = "unpair " + std::to_string(head_rows);
  return {};
}

Status order_values(GgufChange change, const GgufShapes& shapes, StoredWeight& weight) {
  TensorInfo& info = weight.info;
  TANDEM_TRY(expect(shapes.key_heads != 0 && shapes.value_heads % shapes.key_heads == 0 &&
                        shapes.value_heads != 0,
                    "value heads that share key heads evenly"));
  const Order heads = value_heads(shapes);
  const bool columns = change == GgufChange::kValueColumns;
  const uint64_t extent = columns ? info.shape.back() : info.shape.front();
  const uint64_t fixed = change == GgufChange::kMixed ? 2 * shapes.key_heads * shapes.key_dim : 0;
  const bool plain = info.shape.size() != 1 || block_size(info.dtype).elements == 1;
  TANDEM_TRY(expect(plain && extent > fixed && (extent - fixed) % shapes.value_heads == 0 &&
                        (!columns || info.shape.size() == 2),
                    "rows of " + std::to_string(shapes.value_heads) + " value heads, found " +
                        std::to_string(extent)));
  const uint64_t each_head = (extent - fixed) / shapes.value_heads;
  if (change == GgufChange::kLogarithm) {
    TANDEM_TRY(expect(each_head == 1, "one value a head"));
    weight.convert = each(info, [=](std::span<const float> values, size_t i) -> Result<float> {
      const float value = values[heads(i)];
      if (!(value < 0)) return invalid("expected numbers below 0, found " + std::to_string(value));
      return static_cast<float>(arithmetic::logarithm(-double{value}));
    });
    info.dtype = DType::kF32;
    weight.conversion = "logarithm " + std::to_string(shapes.key_heads);
    return {};
  }
  // A convolution's kernels have a dimension of their own in the model.
  const TensorInfo stored = info;
  if (change == GgufChange::kMixed && info.name.ends_with("conv1d.weight")) {
    info.shape.insert(info.shape.begin() + 1, 1);
  }
  if (shapes.key_heads == shapes.value_heads) return {};
  if (columns) {
    weight.convert = reorder_columns(stored, each_head, heads);
    info.dtype = DType::kF32;
  } else {
    weight.convert = reorder(info, [=](uint64_t row) {
      if (row < fixed) return row;
      const uint64_t within = (row - fixed) % each_head;
      return fixed + heads((row - fixed) / each_head) * each_head + within;
    });
  }
  weight.conversion = "value heads " + std::to_string(shapes.key_heads) + " " +
                      std::to_string(fixed) + " " + std::to_string(each_head);
  return {};
}

}  // namespace

Status undo_change(GgufChange change, const GgufShapes& shapes, StoredWeight& weight) {
  TensorInfo& info = weight.info;
  switch (change) {
    case GgufChange::kNone:
    case GgufChange::kExperts:
    case GgufChange::kPairedExperts:
      return {};
    case GgufChange::kPairedQuery:
    case GgufChange::kPairedKey:
      return unpair(change, shapes, weight);
    case GgufChange::kPlusOne:
      TANDEM_TRY(expect(info.shape.size() == 1, "a vector"));
      weight.convert = each(info, [](std::span<const float> values, size_t i) -> Result<float> {
        return values[i] - 1.0F;
      });
      weight.conversion = "minus one";
      info.dtype = DType::kF32;
      return {};
    case GgufChange::kTransposed:
      if (info.shape.size() != 2) return {};  // a bias
      weight.convert = transpose(info);
      weight.conversion = "transpose";
      info.dtype = DType::kF32;
      std::swap(info.shape[0], info.shape[1]);
      return {};
    case GgufChange::kOneRow:
      if (info.shape.size() == 1) info.shape.insert(info.shape.begin(), 1);
      return {};
    case GgufChange::kValueHeads:
    case GgufChange::kMixed:
    case GgufChange::kValueColumns:
    case GgufChange::kLogarithm:
      return order_values(change, shapes, weight);
  }
  return {};
}

Result<StoredWeight> interleave(const StoredWeight& even, const StoredWeight& odd) {
  const TensorInfo& info = even.info;
  const bool vector = info.shape.size() == 2;
  if (info.shape != odd.info.shape || info.dtype != odd.info.dtype ||
      (!vector && info.shape.size() != 3) || (vector && block_size(info.dtype).elements != 1)) {
    return invalid("expected two tensors of one type and shape, of experts");
  }
  StoredWeight both = even;
  both.pieces.push_back(odd.pieces[0]);
  both.conversion = "interleave";
  both.info.shape[1] *= 2;
  const uint64_t unit = vector ? bytes_of(info.dtype, 1) : row_bytes(info);
  const uint64_t each_row = vector ? both.info.shape[1] : 1;
  both.convert = [=](Pieces pieces) -> Result<RowMaker> {
    return RowMaker([=, a = pieces[0], b = pieces[1]](uint64_t first, uint64_t count,
                                                      std::span<std::byte> out) {
      const uint64_t begin = first * each_row;
      for (uint64_t i = 0; i < count * each_row; ++i) {
        // Both tensors have half as many units an expert, so halves of places are places.
        const auto from = ((begin + i) % 2 == 0 ? a : b).subspan((begin + i) / 2 * unit, unit);
        std::memcpy(out.data() + i * unit, from.data(), unit);
      }
    });
  };
  return both;
}

}  // namespace tandem::weights
