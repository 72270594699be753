#include "kernels/webgpu/kernels.h"

#include <algorithm>

#include "arithmetic/format.h"
#include "kernels/webgpu/shaders.h"

namespace tandem::kernels::webgpu {
namespace {

const char* dot_file(WeightFormat format) {
  switch (format) {
    case WeightFormat::k8:
      return "dot8";
    case WeightFormat::k4:
      return "dot4";
    case WeightFormat::k6:
      return "dot6";
  }
  return "";
}

// With fewer, more lanes to a row keep a large GPU's memory busy.
constexpr uint32_t kManyRows = 8192;
// So many that eight lanes to a row still keep all of it busy.
constexpr uint32_t kVeryManyRows = 32768;
// A vocabulary: three to a lane as well; activations are then read less often.
constexpr uint32_t kMostRows = 131072;

}  // namespace

MatmulShape best_shape(WeightFormat format, uint32_t rows, uint32_t columns) {
  const bool eight = format == WeightFormat::k8;
  MatmulShape shape{.lanes = 64, .rows = 2, .threads = 128, .batch = 4};
  if (rows >= kManyRows) shape = {.lanes = 16, .rows = 2, .threads = 64, .batch = 4};
  // One subgroup a workgroup, which then waits for no other, and loads that are asked for early.
  if (rows >= kManyRows && format == WeightFormat::k4) {
    shape = {.lanes = rows >= kVeryManyRows ? 8U : 16U, .rows = 2, .threads = 32, .batch = 8};
    if (rows >= kMostRows) shape = {.lanes = 16, .rows = 3, .threads = 32, .batch = 2};
  }
  if (rows >= kVeryManyRows && format == WeightFormat::k6) shape.batch = 1;
  const uint32_t pieces = columns / (eight ? 16 : 32);
  while (shape.lanes > 1 && shape.lanes > pieces) shape.lanes /= 2;
  return shape;
}

Result<const Pipeline*> Kernels::pipeline(const std::vector<std::string>& files,
                                          const Constants& constants) {
  std::string source;
  for (const auto& [name, value] : constants) {
    source += "const " + name + " = " + std::to_string(value) + "u;\n";
  }
  std::string key = source;
  for (const std::string& file : files) key += file + " ";
  const auto found = pipelines_.find(key);
  if (found != pipelines_.end()) return &found->second;
  for (const std::string& file : files) source += shader(file);
  TANDEM_ASSIGN(Pipeline made, device_.make_pipeline(files.back() + ".wgsl", source));
  return &pipelines_.emplace(key, std::move(made)).first->second;
}

Result<Matrix> Kernels::upload(const gpu::Weights& weights) {
  if (weights.quants.size() > device_.info().max_binding) {
    return unsupported("WebGPU: a matrix of " + std::to_string(weights.quants.size()) +
                       " bytes; this device's kernels reach " +
                       std::to_string(device_.info().max_binding));
  }
  Matrix matrix;
  matrix.format = weights.format;
  matrix.rows = weights.rows;
  matrix.columns = weights.columns;
  matrix.padded = weights.padded;
  TANDEM_ASSIGN(matrix.quants, device_.make_buffer(weights.quants));
  std::vector<uint8_t> extra = weights.high;
  extra.insert(extra.end(), weights.multipliers.begin(), weights.multipliers.end());
  TANDEM_ASSIGN(matrix.extra, device_.make_buffer(extra));
  TANDEM_ASSIGN(matrix.row_scales, device_.make_buffer(weights.row_scales));
  return matrix;
}

Result<ActivationBuffers> Kernels::upload(const gpu::Activations& activations) {
  ActivationBuffers buffers;
  buffers.tokens = activations.tokens;
  buffers.columns = activations.padded;
  buffers.padded = activations.padded;
  TANDEM_ASSIGN(buffers.planes, device_.make_buffer(activations.planes));
  TANDEM_ASSIGN(buffers.exponents, device_.make_buffer(activations.exponents));
  TANDEM_ASSIGN(buffers.group_sums, device_.make_buffer(activations.group_sums));
  return buffers;
}

Result<ActivationBuffers> Kernels::make_activations(uint32_t tokens, uint32_t columns) {
  ActivationBuffers buffers;
  buffers.tokens = tokens;
  buffers.columns = columns;
  buffers.padded = padded_columns(columns);
  const uint64_t values = uint64_t{tokens} * buffers.padded;
  TANDEM_ASSIGN(buffers.planes, device_.make_buffer(2 * values));
  TANDEM_ASSIGN(buffers.exponents, device_.make_buffer(uint64_t{tokens} * 4));
  TANDEM_ASSIGN(buffers.group_sums, device_.make_buffer(values / arithmetic::kGroup * 4));
  return buffers;
}

Status Kernels::matmul(const Matrix& matrix, const ActivationBuffers& in, const Buffer* bias,
                       const Buffer& out, Commands& commands) {
  const MatmulShape shape =
      shape_.has_value() ? *shape_ : best_shape(matrix.format, matrix.rows, matrix.padded);
  for (uint32_t token = 0; token < in.tokens;) {
    const uint32_t left = in.tokens - token;
    const uint32_t tokens = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    // 8 sums a lane at most: more would not stay in registers and workgroup memory.
    const uint32_t rows = std::max(1U, std::min(shape.rows, 8 / tokens));
    std::vector<std::string> files = {"integer", "real", "matmul"};
    if (matrix.format != WeightFormat::k8) files.emplace_back("groups");
    files.emplace_back(dot_file(matrix.format));
    TANDEM_ASSIGN(const Pipeline* made,
                  pipeline(files, {{"kRows", rows},
                                   {"kTokens", tokens},
                                   {"kLanes", shape.lanes},
                                   {"kThreads", shape.threads},
                                   {"kBatch", tokens == 1 ? shape.batch : 1}}));
    Dispatch dispatch;
    dispatch.pipeline = made;
    dispatch.parameters = {matrix.rows, in.padded / 16, in.tokens, token, bias != nullptr ? 1U : 0U,
                           matrix.rows};
    dispatch.buffers = {
        &in.planes, &in.exponents, &matrix.row_scales, bias != nullptr ? bias : &matrix.row_scales,
        &out,       &matrix.quants};
    if (matrix.format != WeightFormat::k8) {
      dispatch.buffers.push_back(&matrix.extra);
      dispatch.buffers.push_back(&in.group_sums);
    }
    const uint32_t block = shape.threads / shape.lanes * rows;
    dispatch.workgroups = (matrix.rows + block - 1) / block;
    commands.push_back(std::move(dispatch));
    token += tokens;
  }
  return {};
}

}  // namespace tandem::kernels::webgpu
