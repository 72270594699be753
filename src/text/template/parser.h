// A chat template's tokens as a tree.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/template/ast.h"

namespace tandem::text::jinja {

/// Parses a whole template. Fails with line, column and what was expected. Nesting is limited so
/// that neither this nor the evaluation can exhaust the stack.
Result<Body> parse_template(std::string_view source);

}  // namespace tandem::text::jinja
