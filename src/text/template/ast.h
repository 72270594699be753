// A parsed chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/template/lexer.h"
#include "text/template/value.h"

namespace tandem::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConstant,     ///< value
  kName,         ///< name
  kList,         ///< children
  kTuple,        ///< children
  kDict,         ///< children: key, value, key, value, …
  kNot,          ///< children[0]
  kNegate,       ///< children[0]
  kPlus,         ///< children[0]
  kBinary,       ///< name is the operator; children[0], children[1]
  kConcat,       ///< children, any number
  kAnd,          ///< children[0], children[1]
  kOr,           ///< children[0], children[1]
  kCompare,      ///< children[0] op children[1] op children[2] …; names are the operators
  kConditional,  ///< children: then, test, else (may be null)
  kAttribute,    ///< children[0].name
  kItem,         ///< children[0][children[1]]
  kSlice,        ///< children[0][children[1]:children[2]:children[3]], bounds may be null
  kCall,         ///< children[0](the rest, named)
  kFilter,       ///< children[0] | name(the rest, named); children[0] is null in a filter block
  kTest,         ///< children[0] is name(the rest, named)
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  Position position;
  uint32_t depth = 1;
  std::string name;
  std::vector<std::string> names;
  Value value;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class StmtKind : uint8_t {
  kText,      ///< text
  kOutput,    ///< expr
  kIf,        ///< branches: test (null for else) and body
  kFor,       ///< names in expr if test: body, else_body
  kSet,       ///< names (or attribute of names[0]) = expr
  kSetBlock,  ///< names[0] (or its attribute) = body, through the filters of expr
  kMacro,     ///< text(names with defaults): body
  kCall,      ///< expr called with a caller(names with defaults) that is body
  kFilter,    ///< body through expr
  kWith,      ///< names[i] = defaults[i]: body
  kScope,     ///< body, as it is (generation blocks)
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  Position position;
  std::string text;
  std::vector<std::string> names;
  std::string attribute;
  std::vector<ExprPtr> defaults;  ///< for the last names
  ExprPtr expr;
  ExprPtr test;
  Body body;
  Body else_body;
  std::vector<std::pair<ExprPtr, Body>> branches;
};

}  // namespace tandem::text::jinja
