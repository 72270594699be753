// A checkpoint's tensor, piece by piece, to packed integers.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "arithmetic/dot.h"
#include "arithmetic/format.h"
#include "weights/dtype.h"
#include "weights/quantize.h"

namespace tandem::weights {
namespace {

// Tensor bytes that are quantized before their pages are given back.
constexpr uint64_t kSlab = uint64_t{8} << 20;

// One thread's work on a matrix: tiles of sixteen rows, each read, quantized and stored by one
// thread.
class TileQuantizer {
 public:
  TileQuantizer(const TensorData& tensor, const MatrixPart& part, kernels::PackedMatrix& matrix)
      : tensor_(tensor),
        part_(part),
        matrix_(matrix),
        rows_(size_t{kernels::kTileRows} * part.columns),
        piece_(kernels::kTileRows),
        quants8_(part.columns),
        quants_(part.columns),
        scales_((part.columns + arithmetic::kGroup - 1) / arithmetic::kGroup),
        minimums_(scales_.size()) {}

  // False if a weight can't be used.
  bool tile(uint32_t index) {
    const uint32_t first = index * kernels::kTileRows;
    const uint32_t count = std::min(kernels::kTileRows, part_.rows - first);
    if (!read(first, count)) return false;
    for (uint32_t r = 0; r < count; ++r) {
      const std::span<const float> row(rows_.data() + size_t{r} * part_.columns, part_.columns);
      // Written so that NaN counts as too large.
      const bool usable = std::all_of(row.begin(), row.end(), [](float w) {
        return std::fabs(w) <= arithmetic::kMaxRowScale * 127.0F;
      });
      if (!usable) return false;
      store(first + r, row);
    }
    return true;
  }

 private:
  bool read(uint32_t first, uint32_t count) {
    const uint64_t element = size_of(tensor_.info.dtype);
    const uint64_t stride = tensor_.info.shape[1];
    if (!part_.transposed) {
      const uint64_t offset = (uint64_t{part_.first_row} + first) * stride * element;
      return widen(tensor_.info.dtype,
                   tensor_.bytes.subspan(offset, uint64_t{count} * stride * element),
                   std::span(rows_).first(size_t{count} * part_.columns))
          .ok();
    }
    for (uint32_t k = 0; k < part_.columns; ++k) {
      const uint64_t offset = (uint64_t{k} * stride + part_.first_row + first) * element;
      if (!widen(tensor_.info.dtype, tensor_.bytes.subspan(offset, count * element),
                 std::span(piece_).first(count))
               .ok()) {
        return false;
      }
      for (uint32_t r = 0; r < count; ++r) rows_[size_t{r} * part_.columns + k] = piece_[r];
    }
    return true;
  }

  void store(uint32_t index, std::span<const float> row) {
    switch (matrix_.format) {
      case kernels::WeightFormat::k8: {
        const float scale = quantize_row8(row, quants8_);
        kernels::store_row8(matrix_, index, quants8_, scale);
        break;
      }
      case kernels::WeightFormat::k4: {
        const float scale = quantize_row4(row, quants_, scales_, minimums_);
        kernels::store_row4(matrix_, index, quants_, scales_, minimums_, scale);
        break;
      }
      case kernels::WeightFormat::k6: {
        const float scale = quantize_row6(row, quants_, scales_);
        kernels::store_row6(matrix_, index, quants_, scales_, scale);
        break;
      }
    }
  }

  const TensorData& tensor_;
  const MatrixPart& part_;
  kernels::PackedMatrix& matrix_;
  std::vector<float> rows_;
  std::vector<float> piece_;
  std::vector<int8_t> quants8_;
  std::vector<uint8_t> quants_;
  std::vector<uint8_t> scales_;
  std::vector<uint8_t> minimums_;
};

}  // namespace

Result<kernels::PackedMatrix> quantize_matrix(const TensorData& tensor, const MatrixPart& part,
                                              kernels::WeightFormat format, ThreadPool& pool) {
  const TensorInfo& info = tensor.info;
  const uint64_t across = part.transposed ? 1 : 0;
  if (info.shape.size() != 2 || info.shape[1 - across] != part.columns ||
      info.shape[across] < uint64_t{part.first_row} + part.rows) {
    return invalid("tensor " + info.name + ": its shape does not hold " +
                   std::to_string(part.first_row + part.rows) + " rows of " +
                   std::to_string(part.columns));
  }
  if (part.columns > arithmetic::kMaxRow) {
    return unsupported("tensor " + info.name + ": rows of " + std::to_string(part.columns) +
                       " are longer than " + std::to_string(arithmetic::kMaxRow));
  }
  kernels::PackedMatrix matrix = kernels::make_packed(format, part.rows, part.columns);
  if (matrix.data.size() == 0) {
    return Error{ErrorKind::kMemory,
                 "tensor " + info.name + ": no memory for " +
                     std::to_string(matrix.bytes_for(format, part.rows, part.columns)) +
                     " bytes of weights"};
  }
  const uint64_t row_bytes = uint64_t{part.columns} * size_of(info.dtype);
  const uint32_t tiles = kernels::tile_count(part.rows);
  // A transposed tensor is read across: all of it is under way at once.
  const uint64_t slab =
      part.transposed ? tiles : std::max<uint64_t>(1, kSlab / (row_bytes * kernels::kTileRows));
  std::atomic<bool> bad{false};
  for (uint64_t begin = 0; begin < tiles && !bad.load(); begin += slab) {
    const uint64_t end = std::min<uint64_t>(tiles, begin + slab);
    const uint64_t grain = std::max<uint64_t>(1, (end - begin) / (uint64_t{pool.threads()} * 4));
    pool.split(end - begin, grain, [&](uint64_t from, uint64_t to) {
      TileQuantizer quantizer(tensor, part, matrix);
      for (uint64_t tile = begin + from; tile < begin + to; ++tile) {
        if (!quantizer.tile(static_cast<uint32_t>(tile))) bad.store(true);
      }
    });
    if (tensor.release && !part.transposed) {
      tensor.release((part.first_row + begin * kernels::kTileRows) * row_bytes,
                     (end - begin) * kernels::kTileRows * row_bytes);
    }
  }
  if (bad.load()) {
    TANDEM_TRY(check_finite(tensor));
    return unsupported("tensor " + info.name + ": a weight is beyond " +
                       std::to_string(static_cast<int>(arithmetic::kMaxRowScale * 127.0F)));
  }
  return matrix;
}

Result<std::vector<float>> read_vector(const TensorData& tensor, uint64_t first, uint64_t count) {
  if (first > tensor.info.elements() || count > tensor.info.elements() - first) {
    return invalid("tensor " + tensor.info.name + ": holds " +
                   std::to_string(tensor.info.elements()) + " values, wanted " +
                   std::to_string(count) + " from " + std::to_string(first));
  }
  TANDEM_TRY(check_finite(tensor));
  std::vector<float> values(count);
  const uint64_t element = size_of(tensor.info.dtype);
  TANDEM_TRY(
      widen(tensor.info.dtype, tensor.bytes.subspan(first * element, count * element), values));
  return values;
}

}  // namespace tandem::weights
