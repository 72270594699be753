#include "kernels/cuda/dots.h"

namespace tandem::kernels::cuda {
namespace {

// As dots.cu declares it.
struct Arguments {
  api::Address weights;
  api::Address multipliers;
  api::Address high_bits;
  api::Address row_scales;
  api::Address planes;
  api::Address exponents;
  api::Address group_sums;
  api::Address bias;
  api::Address out;
  uint32_t rows;
  uint32_t words;
  uint32_t tokens;
  uint32_t first_token;
  uint32_t lanes;
};

const char* bits_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::k8:
      return "8";
    case WeightFormat::k4:
      return "4";
    case WeightFormat::k6:
      return "6";
  }
  return "";
}

// The kernels' launch bounds in dots.cu.
constexpr uint32_t kMaxThreads = 256;
// With fewer, more lanes to a row keep a large GPU's memory busy.
constexpr uint32_t kManyRows = 8192;

}  // namespace

DotShape best_shape(WeightFormat format, uint32_t rows, uint32_t columns, uint32_t tokens) {
  const bool eight = format == WeightFormat::k8;
  const bool many = rows >= kManyRows;
  DotShape shape;
  if (tokens > 1) {
    shape.lanes = eight ? 32 : 64;
  } else if (eight) {
    shape.rows = 4;
    shape.loads = 8;
    shape.lanes = many ? 64 : 128;
  } else {
    shape.lanes = many ? 32 : 64;
  }
  const uint32_t pieces = columns / (eight ? 16 : 32);
  while (shape.lanes > 32 && shape.lanes > pieces) shape.lanes /= 2;
  return shape;
}

Result<api::Function> Dots::function(const std::string& name) {
  const auto found = functions_.find(name);
  if (found != functions_.end()) return found->second;
  TANDEM_ASSIGN(const api::Function function, device_.function(name));
  functions_.emplace(name, function);
  return function;
}

Result<Matrix> Dots::upload(const gpu::Weights& weights) {
  Matrix matrix;
  matrix.format = weights.format;
  matrix.rows = weights.rows;
  matrix.padded = weights.padded;
  TANDEM_ASSIGN(matrix.quants, device_.upload(weights.quants));
  TANDEM_ASSIGN(matrix.high, device_.upload(weights.high));
  TANDEM_ASSIGN(matrix.multipliers, device_.upload(weights.multipliers));
  TANDEM_ASSIGN(matrix.row_scales, device_.upload(weights.row_scales));
  return matrix;
}

Result<Activations> Dots::upload(const gpu::Activations& activations) {
  Activations on_device;
  on_device.tokens = activations.tokens;
  on_device.padded = activations.padded;
  TANDEM_ASSIGN(on_device.planes, device_.upload(activations.planes));
  TANDEM_ASSIGN(on_device.exponents, device_.upload(activations.exponents));
  TANDEM_ASSIGN(on_device.group_sums, device_.upload(activations.group_sums));
  return on_device;
}

Status Dots::matmul(const Matrix& matrix, const Activations& in, const Memory* bias,
                    const Memory& out) {
  for (uint32_t token = 0; token < in.tokens;) {
    const uint32_t left = in.tokens - token;
    const uint32_t tokens = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    DotShape shape = shape_.has_value()
                         ? *shape_
                         : best_shape(matrix.format, matrix.rows, matrix.padded, tokens);
    if (tokens > 1) {
      shape.rows = 2;
      shape.loads = 4;
    }
    if (shape.lanes == 0 || shape.lanes % 32 != 0 || shape.threads % shape.lanes != 0 ||
        shape.threads == 0 || shape.threads > kMaxThreads) {
      return invalid("CUDA: " + std::to_string(shape.lanes) + " lanes of a block of " +
                     std::to_string(shape.threads) + " threads");
    }
    TANDEM_ASSIGN(const api::Function kernel,
                  function(std::string("dot") + bits_of(matrix.format) + "_rows" +
                           std::to_string(shape.rows) + "_tokens" + std::to_string(tokens) +
                           "_loads" + std::to_string(shape.loads)));
    Arguments arguments = {matrix.quants.address(),
                           matrix.multipliers.address(),
                           matrix.high.address(),
                           matrix.row_scales.address(),
                           in.planes.address(),
                           in.exponents.address(),
                           in.group_sums.address(),
                           bias != nullptr ? bias->address() : 0,
                           out.address(),
                           matrix.rows,
                           in.padded / 16,
                           in.tokens,
                           token,
                           shape.lanes};
    void* pointers[] = {&arguments};
    const uint32_t block = shape.threads / shape.lanes * shape.rows;
    TANDEM_TRY(device_.launch(kernel, (matrix.rows + block - 1) / block, shape.threads, pointers,
                              shape.early));
    token += tokens;
  }
  return {};
}

}  // namespace tandem::kernels::cuda
