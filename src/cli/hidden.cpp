#include "cli/hidden.h"

#include <algorithm>

#include "arithmetic/hidden.h"

namespace tandem::cli {
namespace {

using model::HiddenStates;

Status write_states(const std::vector<HiddenStates>& passes, weights::SafetensorsWriter& writer) {
  for (const HiddenStates& pass : passes) {
    std::vector<float> values(pass.values.size());
    for (uint32_t t = 0; t < pass.tokens(); ++t) {
      const size_t row = size_t{t} * pass.width;
      arithmetic::from_boundary(std::span(pass.values).subspan(row, pass.width), pass.exponents[t],
                                std::span(values).subspan(row, pass.width));
    }
    TANDEM_TRY(writer.write(std::as_bytes(std::span(values))));
  }
  return {};
}

}  // namespace

Status write_hidden(const Model& model, model::Ends& ends, const model::StageOptions& options,
                    std::span<const uint32_t> tokens, uint32_t width,
                    weights::SafetensorsWriter& writer) {
  std::vector<HiddenStates> passes;
  for (size_t begin = 0; begin < tokens.size(); begin += width) {
    const auto part = tokens.subspan(begin, std::min<size_t>(width, tokens.size() - begin));
    TANDEM_ASSIGN(HiddenStates hidden, ends.embed(part, static_cast<uint32_t>(begin)));
    passes.push_back(std::move(hidden));
  }
  TANDEM_TRY(write_states(passes, writer));
  for (uint32_t layer = 0; layer < model.config.layers; ++layer) {
    model::StageOptions one = options;
    one.first_layer = layer;
    one.last_layer = layer + 1;
    TANDEM_ASSIGN(const auto stage, model::Stage::load(model.config, one, *model.checkpoint, {}));
    const auto sequence = stage->new_sequence();
    for (HiddenStates& pass : passes) {
      TANDEM_TRY(stage->run(*sequence, sequence->length(), pass));
    }
    if (layer + 1 < model.config.layers) TANDEM_TRY(write_states(passes, writer));
  }
  for (const HiddenStates& pass : passes) {
    TANDEM_ASSIGN(const std::vector<float> normed, ends.final_norm(pass));
    TANDEM_TRY(writer.write(std::as_bytes(std::span(normed))));
  }
  return {};
}

}  // namespace tandem::cli
