// How Python and its json module write values.
#pragma once

#include <string>

#include "text/marked_text.h"
#include "text/template/value.h"

namespace tandem::text::jinja {

/// repr() of a float: the shortest digits that read back as the same number.
std::string float_repr(double value);
/// str(value); a string is itself.
MarkedText to_text(Evaluator& evaluator, const Value& value);
/// repr(value).
MarkedText to_repr(Evaluator& evaluator, const Value& value);

struct JsonStyle {
  int64_t indent = -1;         ///< spaces a level; -1: on one line
  std::string item_separator;  ///< between items
  std::string key_separator;   ///< after a key
  bool sort_keys = false;
  bool ascii = false;
};
/// json.dumps(value). If any part came from outside, all of it counts so, punctuation too.
MarkedText to_json(Evaluator& evaluator, const Value& value, const JsonStyle& style);

}  // namespace tandem::text::jinja
