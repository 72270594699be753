// Products on NVIDIA GPUs. Bits are those of src/arithmetic.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "kernels/cuda/driver.h"
#include "kernels/gpu/layout.h"

namespace tandem::kernels::cuda {

/// Weights on the device, in the layout of gpu::Weights.
struct Matrix {
  WeightFormat format = WeightFormat::k8;
  uint32_t rows = 0;
  uint32_t padded = 0;
  Memory quants;
  Memory high;
  Memory multipliers;
  Memory row_scales;
};

/// Activations on the device, in the layout of gpu::Activations.
struct Activations {
  uint32_t tokens = 0;
  uint32_t padded = 0;
  Memory planes;
  Memory exponents;
  Memory group_sums;
};

/// How a product is cut among threads. Any choice gives the same bits. Kernels take 2 rows with 4
/// loads or 4 with 8; of several tokens always 2 with 4.
struct DotShape {
  uint32_t rows = 2;       ///< that some lanes take together
  uint32_t loads = 4;      ///< of 16 bytes that a lane asks for at once
  uint32_t lanes = 32;     ///< that share rows: a multiple of 32
  uint32_t threads = 128;  ///< of a block: a multiple of `lanes` up to 256
  bool early = true;       ///< begin while the kernel before ends, where the GPU can
};

/// The cut that was fastest on an H200 for one-token products about this large, or within 2 % of
/// it; for several tokens, one that was timed there.
DotShape best_shape(WeightFormat format, uint32_t rows, uint32_t columns, uint32_t tokens);

/// Not thread-safe; must not outlive the device.
class Dots {
 public:
  explicit Dots(Device& device) : device_(device) {}

  Result<Matrix> upload(const gpu::Weights& weights);
  Result<Activations> upload(const gpu::Activations& activations);
  /// Starts out[t * matrix.rows + r] = scaled(dot(row r, in[t])) (+ bias[r] unless null) for all
  /// tokens; `out` and `bias` hold binary32. Errors: kInvalid or
  /// kNotFound for a shape that there is not.
  Status matmul(const Matrix& matrix, const Activations& in, const Memory* bias, const Memory& out);
  /// Cuts every product in this way instead of the best.
  void set_shape(const DotShape& shape) { shape_ = shape; }

 private:
  Result<api::Function> function(const std::string& name);

  Device& device_;
  std::optional<DotShape> shape_;
  std::map<std::string, api::Function> functions_;
};

}  // namespace tandem::kernels::cuda
