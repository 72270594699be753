// The steps that are not products: rows of binary32, heads, attention.
#include <algorithm>
#include <bit>

#include "arithmetic/format.h"
#include "kernels/webgpu/kernels.h"

namespace tandem::kernels::webgpu {
namespace {

// Threads of a workgroup, which all have a row.
constexpr uint32_t kThreads = 128;

}  // namespace

Status Kernels::row_step(std::vector<std::string> files, std::vector<uint32_t> parameters,
                         const std::vector<const Buffer*>& inputs,
                         const std::vector<const Buffer*>& outputs, const Buffer* failed,
                         uint32_t workgroups, const Constants& constants, Commands& commands) {
  constexpr size_t kFirstOutput = 4;  // binding 5
  constexpr size_t kFailed = 7;
  if (workgroups == 0) return {};
  files.insert(files.begin(), {"integer", "real"});
  TANDEM_ASSIGN(const Pipeline* made, pipeline(files, constants));
  Dispatch dispatch;
  dispatch.pipeline = made;
  dispatch.parameters = std::move(parameters);
  dispatch.buffers.assign(kFailed + 1, nullptr);
  std::copy(inputs.begin(), inputs.end(), dispatch.buffers.begin());
  std::copy(outputs.begin(), outputs.end(), dispatch.buffers.begin() + kFirstOutput);
  dispatch.buffers[kFailed] = failed;
  dispatch.workgroups = workgroups;
  commands.push_back(std::move(dispatch));
  return {};
}

Status Kernels::quantize(const Buffer& in, ActivationBuffers& out, const Buffer& failed,
                         Commands& commands) {
  return row_step({"quantization", "row", "to_activations", "quantize"},
                  {out.tokens, out.columns, out.padded, 0, 0}, {&in},
                  {&out.planes, &out.exponents, &out.group_sums}, &failed, out.tokens,
                  {{"kThreads", kThreads}}, commands);
}

Status Kernels::rms_norm(const Buffer& in, const Buffer& weight,
                         const arithmetic::NormConstants& constants, ActivationBuffers& out,
                         const Buffer& failed, Commands& commands) {
  return row_step({"quantization", "exponential", "row", "to_activations", "rms_norm"},
                  {out.tokens, out.columns, out.padded, std::bit_cast<uint32_t>(constants.inverse),
                   std::bit_cast<uint32_t>(constants.epsilon)},
                  {&in, &weight}, {&out.planes, &out.exponents, &out.group_sums}, &failed,
                  out.tokens, {{"kThreads", kThreads}}, commands);
}

Status Kernels::rms_norm(const Buffer& in, const Buffer& weight,
                         const arithmetic::NormConstants& constants, uint32_t rows,
                         const Buffer& floats, const Buffer& failed, Commands& commands) {
  return row_step(
      {"quantization", "exponential", "row", "to_floats", "rms_norm"},
      {rows, constants.n, padded_columns(constants.n), std::bit_cast<uint32_t>(constants.inverse),
       std::bit_cast<uint32_t>(constants.epsilon)},
      {&in, &weight}, {&floats}, &failed, rows, {{"kThreads", kThreads}}, commands);
}

Status Kernels::gated_silu(const Buffer& gate, const Buffer& up, ActivationBuffers& out,
                           const Buffer& failed, Commands& commands) {
  return row_step({"quantization", "exponential", "row", "to_activations", "gated_silu"},
                  {out.tokens, out.columns, out.padded, 0, 0}, {&gate, &up},
                  {&out.planes, &out.exponents, &out.group_sums}, &failed, out.tokens,
                  {{"kThreads", kThreads}}, commands);
}

Result<HeadBuffers> Kernels::make_heads(uint32_t tokens, uint32_t heads, uint32_t head_dim) {
  if (head_dim > arithmetic::kMaxHeadDim) {
    return unsupported("WebGPU: heads of " + std::to_string(head_dim) + " channels");
  }
  HeadBuffers buffers;
  buffers.tokens = tokens;
  buffers.heads = heads;
  buffers.head_dim = head_dim;
  const uint64_t rows = uint64_t{tokens} * heads;
  TANDEM_ASSIGN(buffers.planes, device_.make_buffer(rows * 2 * buffers.words() * 4));
  TANDEM_ASSIGN(buffers.exponents, device_.make_buffer(rows * 4));
  return buffers;
}

Status Kernels::heads(const Buffer& in, const Buffer* rotations, HeadBuffers& out,
                      const Buffer& failed, Commands& commands) {
  const uint32_t rows = out.tokens * out.heads;
  return row_step({"quantization", "heads"}, {rows, out.heads, out.head_dim, out.words()},
                  {&in, rotations != nullptr ? rotations : &in}, {&out.planes, &out.exponents},
                  &failed, rows, {{"kThreads", 64}, {"kRotary", rotations != nullptr ? 1U : 0U}},
                  commands);
}

uint32_t AttentionRange::blocks(uint32_t positions) const {
  if (positions == 0) return 0;
  return (first + positions - 1) / arithmetic::kBlock - first / arithmetic::kBlock + 1;
}

Result<AttentionBuffers> Kernels::make_attention(uint32_t rows, uint32_t positions,
                                                 const AttentionRange& range) {
  AttentionBuffers buffers;
  const uint64_t all = uint64_t{rows} * positions * 4;
  TANDEM_ASSIGN(buffers.scores, device_.make_buffer(all));
  TANDEM_ASSIGN(buffers.weights, device_.make_buffer(all));
  TANDEM_ASSIGN(buffers.block_shifts,
                device_.make_buffer(uint64_t{rows} * range.blocks(positions) * 4));
  TANDEM_ASSIGN(buffers.masses, device_.make_buffer(uint64_t{rows} * 16));
  return buffers;
}

Status Kernels::attention(const HeadBuffers& queries, const HeadBuffers& keys,
                          const HeadBuffers& values, const AttentionRange& range,
                          const Buffer* sinks, AttentionBuffers& between, const Buffer& out,
                          Commands& commands) {
  const uint32_t rows = queries.tokens * queries.heads;
  const uint32_t positions = keys.tokens;
  const std::vector<uint32_t> parameters = {rows,
                                            positions,
                                            range.first,
                                            range.blocks(positions),
                                            keys.words(),
                                            keys.head_dim,
                                            std::bit_cast<uint32_t>(range.constant)};
  const Constants constants = {{"kThreads", kThreads}};
  const uint32_t chunks = (positions + kThreads - 1) / kThreads;
  TANDEM_TRY(row_step({"attention", "attention_scores"}, parameters,
                      {&queries.planes, &queries.exponents, &keys.planes, &keys.exponents},
                      {&between.scores}, nullptr, rows * chunks, constants, commands));
  TANDEM_TRY(
      row_step({"exponential", "attention", "attention_weights"}, parameters,
               {&between.scores, &values.exponents, sinks != nullptr ? sinks : &between.scores},
               {&between.weights, &between.block_shifts, &between.masses}, nullptr, rows,
               {{"kThreads", kThreads}, {"kSinks", sinks != nullptr ? 1U : 0U}}, commands));
  return row_step({"exponential", "attention", "attention_values"}, parameters,
                  {&between.weights, &between.block_shifts, &between.masses, &values.planes},
                  {&out}, nullptr, rows, constants, commands);
}

}  // namespace tandem::kernels::webgpu
