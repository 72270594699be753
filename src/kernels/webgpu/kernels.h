// The steps of a forward pass as WGSL kernels: each method appends dispatches to a list, which
// Device::submit runs. Bits are those of src/arithmetic; the shaders compute in 32-bit integers
// alone (docs/arithmetic.md, "On GPUs").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/gpu/layout.h"
#include "kernels/webgpu/device.h"

namespace tandem::kernels::webgpu {

/// Weights on a device, in the layout of gpu::Weights.
struct Matrix {
  WeightFormat format = WeightFormat::k8;
  uint32_t rows = 0;
  uint32_t columns = 0;
  uint32_t padded = 0;
  Buffer quants;
  Buffer high;
  Buffer multipliers;
  Buffer row_scales;
};

/// Activations of up to `tokens` tokens on a device, in the layout of gpu::Activations.
struct ActivationBuffers {
  uint32_t tokens = 0;
  uint32_t columns = 0;
  uint32_t padded = 0;
  Buffer planes;
  Buffer exponents;
  Buffer group_sums;
};

/// How a product is cut among threads. Any choice gives the same bits.
struct MatmulShape {
  uint32_t lanes = 32;     ///< threads that share a row: a power of two up to `threads`
  uint32_t rows = 2;       ///< of a lane
  uint32_t threads = 128;  ///< of a workgroup
};

using Commands = std::vector<Dispatch>;

/// The kernels of one device, compiled when they are first used. Not thread-safe; must not outlive
/// the device. Buffers that commands name must live until those have run.
class Kernels {
 public:
  explicit Kernels(Device& device) : device_(device) {}

  /// Errors: kMemory; kUnsupported if the matrix is larger than one binding of the device.
  Result<Matrix> upload(const gpu::Weights& weights);
  Result<ActivationBuffers> upload(const gpu::Activations& activations);
  /// Room for activations that a step will write.
  Result<ActivationBuffers> make_activations(uint32_t tokens, uint32_t columns);

  /// out[t * matrix.rows + r] = scaled(dot(row r, in[t])) (+ bias[r] unless null), for all tokens.
  Status matmul(const Matrix& matrix, const ActivationBuffers& in, const Buffer* bias,
                const Buffer& out, Commands& commands);
  /// How matmul cuts products of up to 8 tokens at once.
  void set_matmul_shape(const MatmulShape& shape) { shape_ = shape; }

 private:
  using Constants = std::vector<std::pair<std::string, uint32_t>>;
  /// The pipeline of these shader files, in order, after `constants` as WGSL constants.
  Result<const Pipeline*> pipeline(const std::vector<std::string>& files,
                                   const Constants& constants);

  Device& device_;
  MatmulShape shape_;
  std::map<std::string, Pipeline> pipelines_;
};

}  // namespace tandem::kernels::webgpu
