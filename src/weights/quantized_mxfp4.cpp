// Experts stored as MXFP4: blocks of 32 4-bit floats, and a power of two a block, in two tensors.
#include <cstring>
#include <string>

#include "weights/block.h"
#include "weights/dtype.h"
#include "weights/printable.h"
#include "weights/quantized.h"
#include "weights/quantized_parts.h"

namespace tandem::weights {
namespace {

constexpr uint64_t kNibbleBytes = 16;  // of a block

// Stored, a block's byte j holds elements 2j and 2j + 1; in DType::kMxfp4 j and j + 16.
Convert to_blocks(uint64_t blocks_a_row) {
  return [=](std::span<const std::span<const std::byte>> pieces) -> Result<RowMaker> {
    const auto nibbles = pieces[0];
    const auto scales = pieces[1];
    return RowMaker([=](uint64_t first, uint64_t count, std::span<std::byte> out) {
      std::byte* at = out.data();
      for (uint64_t block = first * blocks_a_row; block < (first + count) * blocks_a_row; ++block) {
        *at++ = scales[block];
        const std::byte* stored = nibbles.data() + block * kNibbleBytes;
        for (uint64_t j = 0; j < kNibbleBytes; ++j) {
          const auto element = [&](uint64_t i) {
            return i % 2 == 0 ? stored[i / 2] & std::byte{15} : stored[i / 2] >> 4;
          };
          *at++ = element(j) | element(j + kNibbleBytes) << 4;
        }
      }
    });
  };
}

}  // namespace

Status add_mxfp4(const StoredTensors& found, Quantized& result) {
  constexpr std::string_view kEnd = "_blocks";
  for (const auto& [name, place] : found) {
    const StoredTensor& blocks = place.tensor;
    if (!name.ends_with(kEnd) || blocks.type != StoredType::kU8) continue;
    const std::string what = "tensor " + printable(name);
    if (blocks.shape.size() != 4 || blocks.shape[3] != kNibbleBytes) {
      return invalid(what + ": expected [experts, rows, blocks, 16] bytes of 4-bit floats");
    }
    const std::string scale_name = name.substr(0, name.size() - kEnd.size()) + "_scales";
    const auto scale = found.find(scale_name);
    if (scale == found.end()) {
      return invalid(what + ": expected its scales " + printable(scale_name) + ", found none");
    }
    const StoredTensor& scales = scale->second.tensor;
    const std::vector<uint64_t> shape(blocks.shape.begin(), blocks.shape.end() - 1);
    if (scales.type != StoredType::kU8 || scales.shape != shape) {
      return invalid("tensor " + printable(scale_name) + ": expected a byte for each block of " +
                     printable(name));
    }
    StoredWeight weight;
    weight.info = {name, DType::kMxfp4, {shape[0], shape[1], shape[2] * 2 * kNibbleBytes}};
    if (!tensor_bytes(weight.info.dtype, weight.info.shape)) {
      return invalid(what + ": expected less than 2^63 bytes");
    }
    weight.pieces = {{place.file, blocks.offset, blocks.bytes},
                     {scale->second.file, scales.offset, scales.bytes}};
    weight.conversion = "mxfp4";
    weight.convert = to_blocks(shape[2]);
    weight.stored_as = "MXFP4";
    result.used.insert(name);
    result.used.insert(scale_name);
    result.weights.push_back(std::move(weight));
  }
  return {};
}

}  // namespace tandem::weights
