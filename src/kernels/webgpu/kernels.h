// The steps of a forward pass as WGSL kernels: each method appends dispatches to a list, which
// Device::submit runs. Bits are those of src/arithmetic; the shaders compute in 32-bit integers
// alone (docs/arithmetic.md, "On GPUs").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "arithmetic/norm.h"
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
  Buffer extra;  ///< k4: the multipliers; k6: the high bits, then the multipliers
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
  uint32_t lanes = 32;     ///< threads that share rows: a power of two up to `threads`
  uint32_t rows = 2;       ///< that they take together
  uint32_t threads = 128;  ///< of a workgroup
  uint32_t batch = 1;      ///< words of a row that a thread asks for at once
};

/// The cut of a one-token product that was fastest on an H200 for matrices about this large,
/// or within 4 % of it.
MatmulShape best_shape(WeightFormat format, uint32_t rows, uint32_t columns);

/// Heads of keys, values or queries on a device: two planes of bytes each, 256 * high + low.
struct HeadBuffers {
  uint32_t tokens = 0;  ///< or positions
  uint32_t heads = 0;   ///< of a token
  uint32_t head_dim = 0;
  Buffer planes;     ///< [token][head][high, low][head_dim up to a multiple of 16]
  Buffer exponents;  ///< [token][head]

  [[nodiscard]] uint32_t words() const { return (head_dim + 15) / 16 * 4; }
};

/// What attention leaves between its three kernels, for `rows` query heads.
struct AttentionBuffers {
  Buffer scores;        ///< [row][position] in units of 2^-16
  Buffer weights;       ///< [row][position] aligned to the largest of their block
  Buffer block_shifts;  ///< [row][block]
  Buffer masses;        ///< [row] denominator (low, high word), least block shift, 0
};

/// Positions that all rows of an attention step see, and the constant of arithmetic::score.
struct AttentionRange {
  uint32_t first = 0;  ///< absolute position of the first key
  float constant = 0;

  /// Blocks of arithmetic::kBlock positions that `positions` of them touch.
  [[nodiscard]] uint32_t blocks(uint32_t positions) const;
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
  /// Rows [rows][columns] of binary32 to activations, as arithmetic::quantize. `failed` (4 bytes)
  /// becomes 1 if a number is not finite; so in all steps below.
  Status quantize(const Buffer& in, ActivationBuffers& out, const Buffer& failed,
                  Commands& commands);
  /// out = quantize(rms_norm(in)), or without `out` the norm itself to `floats`. Also `failed`
  /// where arithmetic::rms_norm fails.
  Status rms_norm(const Buffer& in, const Buffer& weight,
                  const arithmetic::NormConstants& constants, ActivationBuffers& out,
                  const Buffer& failed, Commands& commands);
  Status rms_norm(const Buffer& in, const Buffer& weight,
                  const arithmetic::NormConstants& constants, uint32_t rows, const Buffer& floats,
                  const Buffer& failed, Commands& commands);
  /// out = quantize(gated_silu(gate, up)).
  Status gated_silu(const Buffer& gate, const Buffer& up, ActivationBuffers& out,
                    const Buffer& failed, Commands& commands);
  Result<HeadBuffers> make_heads(uint32_t tokens, uint32_t heads, uint32_t head_dim);
  /// Heads [tokens][heads][head_dim] of binary32, quantized, and rotated unless `rotations` (two
  /// 32-bit integers a pair, [tokens][head_dim / 2]) is null.
  Status heads(const Buffer& in, const Buffer* rotations, HeadBuffers& out, const Buffer& failed,
               Commands& commands);
  Result<AttentionBuffers> make_attention(uint32_t rows, uint32_t positions,
                                          const AttentionRange& range);
  /// out[row][head_dim] = attention of each head of `queries` over all positions of `keys` and
  /// `values`, which hold one head a position. `sinks`: arithmetic::sink_score of each row, or
  /// null.
  Status attention(const HeadBuffers& queries, const HeadBuffers& keys, const HeadBuffers& values,
                   const AttentionRange& range, const Buffer* sinks, AttentionBuffers& between,
                   const Buffer& out, Commands& commands);
  /// How matmul cuts products of up to 8 tokens at once.
  void set_matmul_shape(const std::optional<MatmulShape>& shape) { shape_ = shape; }

 private:
  using Constants = std::vector<std::pair<std::string, uint32_t>>;
  /// The pipeline of these shader files, in order, after `constants` as WGSL constants.
  Result<const Pipeline*> pipeline(const std::vector<std::string>& files,
                                   const Constants& constants);
  /// A step over rows; `inputs` are bindings 1, 2, …; `outputs` 5, 6, ….
  Status row_step(std::vector<std::string> files, std::vector<uint32_t> parameters,
                  const std::vector<const Buffer*>& inputs,
                  const std::vector<const Buffer*>& outputs, const Buffer* failed,
                  uint32_t workgroups, const Constants& constants, Commands& commands);

  Device& device_;
  std::optional<MatmulShape> shape_;
  std::map<std::string, Pipeline> pipelines_;
};

}  // namespace tandem::kernels::webgpu
