// Checkpoints whose weights are stored quantized, as quantization_config in config.json says:
//
//   fp8, fbgemm_fp8      F8_E4M3 or F8_E5M2 with a scale a tensor, a row, or a block
//                        (weight_block_size; weight_scale_inv)
//   awq                  4 bit (version gemm): qweight, qzeros, scales
//   gptq                 2, 4 or 8 bit: qweight, qzeros, scales, g_idx; checkpoint_format gptq
//                        (stored zero points are one less) or gptq_v2
//   mxfp4                gpt-oss: 4-bit floats and scales of blocks of 32
//   compressed-tensors   pack-quantized (4 or 8 bit), int-quantized, float-quantized
//
// Each module's tensors become one weight "<module>.weight": groups of 32 (block.h) that hold the
// stored numbers exactly, or binary32 where groups do not lie side by side. What a method says of
// activations is not computed: Tandem's have 16 bits. Everything else that it can't undo is refused
// by name.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/mapped_file.h"
#include "weights/safetensors.h"
#include "weights/stored_weight.h"

namespace tandem::weights {

/// A tensor of a safetensors file, of any type.
struct StoredPlace {
  StoredTensor tensor;
  std::shared_ptr<const MappedFile> file;
};
using StoredTensors = std::map<std::string, StoredPlace, std::less<>>;

struct Quantized {
  std::string config_json;  ///< without quantization_config
  std::vector<StoredWeight> weights;
  std::set<std::string, std::less<>> used;  ///< stored tensors that became part of them
};

/// What a checkpoint's quantization_config asks for; nothing and the text as it was without one.
/// Only shapes and types are looked at. Errors: kUnsupported (names the method or the setting),
/// kInvalid (names the tensor).
Result<Quantized> read_quantized(const std::string& config_json, const StoredTensors& found);

/// F8 tensors with their scales. `block` is the height and width of a block of weight_scale_inv, 0
/// where the config gives none.
Status add_fp8(const StoredTensors& found, uint64_t block_rows, uint64_t block_columns,
               Quantized& result);

/// Pairs of U8 tensors …_blocks [experts, rows, columns / 32, 16] and …_scales: each becomes one
/// weight of the name and type of the blocks, [experts, rows, columns].
Status add_mxfp4(const StoredTensors& found, Quantized& result);

enum class PackedKind : uint8_t { kAwq, kGptq, kGptqV2, kPackQuantized, kIntQuantized };
struct PackedOptions {
  PackedKind kind = PackedKind::kAwq;
  uint32_t bits = 4;
  /// Columns in any order of groups (GPTQ's act-order): weights become binary32.
  bool any_order = false;
};
/// Integer weights with scales and zero points of groups.
Status add_packed(const StoredTensors& found, const PackedOptions& options, Quantized& result);

}  // namespace tandem::weights
