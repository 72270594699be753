// Any bytes as a .gguf file: refused with a message, or listed with ranges that lie in the file and
// don't overlap, and then whatever else is made of the metadata: a config, weights, a tokenizer.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "text/tokenizer.h"
#include "weights/dtype.h"
#include "weights/gguf_model.h"
#include "weights/gguf_text.h"

using namespace tandem;
using namespace tandem::weights;

namespace {

void check_message(const Error& error) {
  if (error.message.empty() || error.message.find('\n') != std::string::npos) std::abort();
}

void check_tensors(const GgufHeader& header, size_t size) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.offset > size || tensor.bytes > size - tensor.offset || tensor.bytes == 0) {
      std::abort();
    }
    if (tensor_bytes(tensor.dtype, tensor.shape) != tensor.bytes) std::abort();
    ranges.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].second > ranges[i].first) std::abort();
  }
}

void make_weights(const GgufHeader& header, std::span<const std::byte> file) {
  const auto family = find_gguf_family(header);
  if (!family.ok()) return check_message(family.error());
  const auto config = gguf_config(header, **family);
  if (!config.ok()) return check_message(config.error());
  const auto weights = gguf_weights(header, **family, *config, {});
  if (!weights.ok()) return check_message(weights.error());
  for (const StoredWeight& weight : *weights) {
    const auto& piece = weight.pieces.front();
    const auto bytes = file.subspan(piece.offset, piece.bytes);
    if (!weight.convert || weight.info.bytes() > (1U << 20)) continue;
    const std::span<const std::byte> pieces[] = {bytes};
    const auto make = weight.convert(pieces);
    if (!make.ok()) continue;
    std::vector<std::byte> out(weight.info.bytes());
    (*make)(0, row_count(weight.info), out);
  }
}

void make_text(const GgufHeader& header) {
  const auto text = gguf_text(header);
  if (!text.ok()) return check_message(text.error());
  const auto tokenizer = text::Tokenizer::from_vocabulary(text->vocabulary, "");
  if (!tokenizer.ok()) return;
  const auto ids = tokenizer->encode("Once upon \xc3\xa9 <s> time");
  if (ids.ok()) (void)tokenizer->decode(*ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto header = parse_gguf(file, size);
  if (!header.ok()) {
    check_message(header.error());
    return 0;
  }
  check_tensors(*header, size);
  make_weights(*header, file);
  make_text(*header);
  return 0;
}
