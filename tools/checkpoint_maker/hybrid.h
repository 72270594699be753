// Models of gated delta nets and gated attention, as Qwen3.5 is published: the text model within a
// larger one.
#pragma once

#include "checkpoint_maker/shapes.h"

namespace tandem::tools {

nlohmann::ordered_json hybrid_config(const Shape& shape);
/// With Shape::wrapped also tensors that a text model leaves out: an eye's, and a drafting layer's.
std::vector<MadeTensor> hybrid_tensors(const Shape& shape);

}  // namespace tandem::tools
