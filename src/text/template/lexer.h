// A chat template's source as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::text::jinja {

struct Position {
  uint32_t line = 1;    ///< from 1
  uint32_t column = 1;  ///< from 1, in bytes
};

struct Token {
  enum class Kind : uint8_t {
    kText,           ///< outside of any tag
    kBlockBegin,     ///< {%
    kBlockEnd,       ///< %}
    kVariableBegin,  ///< {{
    kVariableEnd,    ///< }}
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  Position position;
  /// The text, name, operator, or a string literal's value.
  std::string text;
  int64_t integer = 0;
  double number = 0;
};

/// Splits `source` as Jinja does with trim_blocks and lstrip_blocks: the newline after a block or
/// comment tag goes, and so does the white space before one at the start of a line. Line ends are
/// read as \n, and one at the very end is dropped. Fails with line and column.
Result<std::vector<Token>> tokenize(std::string_view source);

/// "line 3, column 7".
std::string to_string(Position position);

}  // namespace tandem::text::jinja
