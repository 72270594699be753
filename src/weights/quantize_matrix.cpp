// A checkpoint's tensor, piece by piece, to packed integers.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arithmetic/dot.h"
#include "arithmetic/format.h"
#include "base/mutex.h"
#include "weights/dtype.h"
#include "weights/quantize.h"
#include "weights/quantize_tile.h"

namespace tandem::weights {
namespace {

// Tensor bytes that are quantized before their pages are given back.
constexpr uint64_t kSlab = uint64_t{8} << 20;

// Columns that are widened and turned at once: sixteen rows of them fit the first-level cache.
// Types of large blocks need the longer stretch.
constexpr uint32_t kTurned = 64;
constexpr uint32_t kLongestBlock = 256;

// One thread's work on a matrix: tiles of sixteen rows, each read, quantized and stored by one
// thread.
class TileWork {
 public:
  TileWork(const TensorData& tensor, const MatrixPart& part, kernels::PackedMatrix& matrix,
           TileQuantizer quantizer, uint64_t base)
      : tensor_(tensor),
        base_(base),
        part_(part),
        matrix_(matrix),
        quantizer_(quantizer),
        turned_(std::max(kTurned, block_size(tensor.info.dtype).elements)),
        grids_(matrix.format == kernels::WeightFormat::k4 && has_grids(tensor.info.dtype)),
        scratch_(matrix.format, part.columns) {}

  [[nodiscard]] bool ok() const { return scratch_.ok(); }

  // False if a weight can't be used.
  bool tile(uint32_t index) {
    const uint32_t first = index * kernels::kTileRows;
    const uint32_t count = std::min(kernels::kTileRows, part_.rows - first);
    if (count < kernels::kTileRows) {
      std::fill_n(scratch_.weights.data(), scratch_.weights.size(), 0.0F);
      if (grids_) std::fill_n(scratch_.fits.data(), scratch_.fits.size(), 0.0F);
    }
    if (part_.transposed) {
      read_across(first, count);
    } else {
      read(first, count);
    }
    if (part_.rest) keep_rest();
    const TileShape shape{matrix_.format, part_.columns, count, grids_};
    return quantizer_(shape, scratch_, matrix_.data.data() + index * matrix_.tile_bytes(),
                      matrix_.row_scales.data() + size_t{first});
  }

 private:
  // The sizes match by construction: quantize_matrix() has checked the shape.
  void widened(uint64_t element, std::span<float> values) const {
    const DType dtype = tensor_.info.dtype;
    (void)widen(
        dtype,
        tensor_.bytes.subspan(bytes_of(dtype, base_ + element), bytes_of(dtype, values.size())),
        values);
  }

  // Takes quantize_row8()'s weights from all rows of the tile; what is not finite stays so.
  void keep_rest() {
    std::array<float, kernels::kTileRows> scales = {};
    for (uint32_t k = 0; k < part_.columns; ++k) {
      const float* weights = scratch_.weights.data() + size_t{k} * kernels::kTileRows;
      for (uint32_t r = 0; r < kernels::kTileRows; ++r) {
        scales[r] = std::max(scales[r], std::fabs(weights[r]));
      }
    }
    for (float& scale : scales) scale = std::max(scale / 127.0F, arithmetic::kMinRowScale);
    // The sum's last place is 1: nearest integers, ties to even.
    constexpr float kNearest = 12582912.0F;
    for (uint32_t k = 0; k < part_.columns; ++k) {
      float* weights = scratch_.weights.data() + size_t{k} * kernels::kTileRows;
      for (uint32_t r = 0; r < kernels::kTileRows; ++r) {
        const float q = std::min(127.0F, std::max(-127.0F, weights[r] / scales[r]));
        const float kept = ((q + kNearest) - kNearest) * scales[r];
        weights[r] -= kept;
      }
    }
  }

  void read(uint32_t first, uint32_t count) {
    const uint64_t begin = (part_.first_row + uint64_t{first} * part_.row_step) * part_.columns;
    const uint64_t stride = uint64_t{part_.columns} * part_.row_step;
    for (uint32_t k = 0; k < part_.columns; k += turned_) {
      const uint32_t width = std::min(turned_, part_.columns - k);
      for (uint32_t r = 0; r < count; ++r) {
        widened(begin + r * stride + k, std::span(rows_[r]).first(width));
        if (grids_) read_grids(begin + r * stride + k, width, r, k);
      }
      float* out = scratch_.weights.data() + size_t{k} * kernels::kTileRows;
      if (count == kernels::kTileRows) {
        for (uint32_t i = 0; i < width; ++i) {
          for (uint32_t r = 0; r < kernels::kTileRows; ++r) {
            out[i * kernels::kTileRows + r] = rows_[r][i];
          }
        }
      } else {
        for (uint32_t i = 0; i < width; ++i) {
          for (uint32_t r = 0; r < count; ++r) out[i * kernels::kTileRows + r] = rows_[r][i];
        }
      }
    }
  }

  // The grids of `width` elements from `element` on, which are row r's from column k on.
  void read_grids(uint64_t element, uint32_t width, uint32_t r, uint32_t k) {
    std::array<GroupGrid, kLongestBlock / arithmetic::kGroup> grids;
    const auto seen = std::span(grids).first(width / arithmetic::kGroup);
    const DType dtype = tensor_.info.dtype;
    block_grids(dtype, tensor_.bytes.data() + bytes_of(dtype, base_ + element), seen);
    for (size_t i = 0; i < seen.size(); ++i) {
      float* fit = scratch_.fits.data() + (k / arithmetic::kGroup + i) * 2 * kernels::kTileRows + r;
      fit[0] = seen[i].scale;
      fit[kernels::kTileRows] = seen[i].minimum;
    }
  }

  // A tensor stored [columns, rows] has the rows of a column side by side already.
  void read_across(uint32_t first, uint32_t count) {
    const uint64_t stride = tensor_.info.shape.back();
    const uint64_t begin = part_.first_row + uint64_t{first} * part_.row_step;
    if (part_.row_step == 1) {
      for (uint32_t k = 0; k < part_.columns; ++k) {
        widened(k * stride + begin,
                {scratch_.weights.data() + size_t{k} * kernels::kTileRows, count});
      }
      return;
    }
    std::array<float, kernels::kTileRows * kMostRowStep> values;
    const auto seen = std::span(values).first((count - 1) * part_.row_step + 1);
    for (uint32_t k = 0; k < part_.columns; ++k) {
      widened(k * stride + begin, seen);
      float* out = scratch_.weights.data() + size_t{k} * kernels::kTileRows;
      for (uint32_t r = 0; r < count; ++r) out[r] = seen[size_t{r} * part_.row_step];
    }
  }

  const TensorData& tensor_;
  uint64_t base_;  // element where the part's matrix begins
  const MatrixPart& part_;
  kernels::PackedMatrix& matrix_;
  TileQuantizer quantizer_;
  uint32_t turned_;
  bool grids_;
  TileScratch scratch_;
  std::array<std::array<float, kLongestBlock>, kernels::kTileRows> rows_;
};

// Memory of threads between two pieces of work.
class IdleWork {
 public:
  std::unique_ptr<TileWork> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    std::unique_ptr<TileWork> work = std::move(idle_.back());
    idle_.pop_back();
    return work;
  }
  void give(std::unique_ptr<TileWork> work) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(work));
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<TileWork>> idle_;
};

}  // namespace

Result<kernels::PackedMatrix> quantize_matrix(const TensorData& tensor, const MatrixPart& part,
                                              kernels::WeightFormat format, ThreadPool& pool) {
  const TensorInfo& info = tensor.info;
  const uint64_t stack = part.stacked ? 1 : 0;
  const uint64_t across = stack + (part.transposed ? 1 : 0);
  const uint64_t along = stack + (part.transposed ? 0 : 1);
  const uint64_t last = part.first_row + (uint64_t{part.rows} - 1) * part.row_step;
  if (info.shape.size() != 2 + stack || info.shape[along] != part.columns ||
      info.shape[across] <= last || (part.stacked && info.shape[0] <= part.slab) ||
      part.row_step == 0 || part.row_step > kMostRowStep) {
    return invalid("tensor " + info.name + ": its shape does not hold " + std::to_string(last + 1) +
                   " rows of " + std::to_string(part.columns));
  }
  if (part.rest && format != kernels::WeightFormat::k8) {
    return invalid("tensor " + info.name + ": only weights of 8 bits have a rest");
  }
  const uint64_t base = part.slab * info.shape[across] * info.shape[along];
  if (part.columns > arithmetic::kMaxRow) {
    return unsupported("tensor " + info.name + ": rows of " + std::to_string(part.columns) +
                       " are longer than " + std::to_string(arithmetic::kMaxRow));
  }
  if (part.transposed && block_size(info.dtype).elements != 1) {
    return unsupported("tensor " + info.name +
                       ": a matrix stored [columns, rows] can't be of type " +
                       std::string(name(info.dtype)));
  }
  kernels::PackedMatrix matrix = kernels::make_unwritten(format, part.rows, part.columns);
  if (matrix.data.size() == 0) {
    return Error{ErrorKind::kMemory,
                 "tensor " + info.name + ": no memory for " +
                     std::to_string(matrix.bytes_for(format, part.rows, part.columns)) +
                     " bytes of weights"};
  }
  const uint64_t row_bytes = bytes_of(info.dtype, part.columns);
  const uint32_t tiles = kernels::tile_count(part.rows);
  // A transposed tensor is read across: all of it is under way at once.
  const uint64_t slab =
      part.transposed ? tiles : std::max<uint64_t>(1, kSlab / (row_bytes * kernels::kTileRows));
  const bool exact = info.dtype == DType::kMxfp4 && format == kernels::WeightFormat::k6;
  const TileQuantizer quantizer = exact ? mxfp4_tile_quantizer() : best_tile_quantizer();
  std::atomic<bool> bad{false};
  std::atomic<bool> exhausted{false};
  IdleWork idle;
  for (uint64_t begin = 0; begin < tiles && !bad && !exhausted; begin += slab) {
    const uint64_t end = std::min<uint64_t>(tiles, begin + slab);
    const uint64_t grain = std::max<uint64_t>(1, (end - begin) / (uint64_t{pool.threads()} * 4));
    pool.split(end - begin, grain, [&](uint64_t from, uint64_t to) {
      std::unique_ptr<TileWork> work = idle.take();
      if (work == nullptr) work = std::make_unique<TileWork>(tensor, part, matrix, quantizer, base);
      if (!work->ok()) {
        exhausted = true;
        return;
      }
      for (uint64_t tile = begin + from; tile < begin + to; ++tile) {
        if (!work->tile(static_cast<uint32_t>(tile))) bad = true;
      }
      idle.give(std::move(work));
    });
    if (tensor.release && !part.transposed) {
      const uint64_t first = part.first_row + begin * kernels::kTileRows * part.row_step;
      tensor.release(bytes_of(info.dtype, base) + first * row_bytes,
                     (end - begin) * kernels::kTileRows * part.row_step * row_bytes);
    }
  }
  if (tensor.release && part.transposed && part.stacked) {
    tensor.release(bytes_of(info.dtype, base), info.shape[across] * row_bytes);
  }
  if (exhausted) {
    return Error{ErrorKind::kMemory, "tensor " + info.name + ": no memory to quantize it"};
  }
  if (bad) {
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
  const DType dtype = tensor.info.dtype;
  const uint64_t block = block_size(dtype).elements;
  const uint64_t skipped = first % block;
  std::vector<float> values((skipped + count + block - 1) / block * block);
  TANDEM_TRY(widen(
      dtype, tensor.bytes.subspan(bytes_of(dtype, first - skipped), bytes_of(dtype, values.size())),
      values));
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(skipped));
  values.resize(count);
  return values;
}

}  // namespace tandem::weights
