#include "text/template/expression_parser.h"

#include <algorithm>
#include <array>

namespace tandem::text::jinja {

namespace {

using Kind = Token::Kind;

/// Counts nesting for as long as it lives.
class Nesting {
 public:
  explicit Nesting(uint32_t& depth) : depth_(depth) { ++depth_; }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  uint32_t& depth_;
};

}  // namespace

void ExpressionParser::fail(const std::string& message) {
  if (!failed_) {
    failed_ = true;
    error_ = invalid(to_string(current().position) + ": " + message);
  }
  at_ = tokens_.size() - 1;
}

std::string ExpressionParser::describe_current() const {
  switch (current().kind) {
    case Kind::kEnd:
      return "the end of the template";
    case Kind::kText:
      return "text";
    case Kind::kString:
      return "a string";
    default:
      return "\"" + current().text.substr(0, 60) + "\"";
  }
}

bool ExpressionParser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  advance();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  advance();
  return true;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (skip_op(op)) return;
  fail("expected \"" + std::string(op) + "\", found " + describe_current());
}

std::string ExpressionParser::expect_identifier() {
  if (!is(Kind::kName)) {
    fail("expected a name, found " + describe_current());
    return {};
  }
  std::string name = current().text;
  advance();
  return name;
}

ExprPtr ExpressionParser::make(ExprKind kind, Position position, std::string name) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->position = position;
  expr->name = std::move(name);
  return expr;
}

void ExpressionParser::add(Expr& parent, ExprPtr child) {
  if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxExprDepth) fail("expression nested too deep");
  parent.children.push_back(std::move(child));
}

ExprPtr ExpressionParser::binary(ExprKind kind, ExprPtr left, ExprPtr right, const Token& op) {
  ExprPtr expr = make(kind, op.position, op.text);
  add(*expr, std::move(left));
  add(*expr, std::move(right));
  return expr;
}

ExprPtr ExpressionParser::parse_tuple() {
  const Position position = current().position;
  ExprPtr first = parse_expression();
  if (!is_op(",")) return first;
  ExprPtr tuple = make(ExprKind::kTuple, position);
  add(*tuple, std::move(first));
  while (skip_op(",") && !failed()) {
    if (is(Kind::kBlockEnd) || is(Kind::kVariableEnd) || is_op(")") || is_op("=")) break;
    add(*tuple, parse_expression());
  }
  return tuple;
}

ExprPtr ExpressionParser::parse_expression() {
  const Nesting nesting(depth_);
  if (depth_ > kMaxDepth) {
    fail("expression nested too deep");
    return nullptr;
  }
  ExprPtr expr = parse_or();
  while (is_name("if") && !failed()) {
    const Token token = current();
    advance();
    ExprPtr conditional = make(ExprKind::kConditional, token.position);
    add(*conditional, std::move(expr));
    add(*conditional, parse_or());
    add(*conditional, skip_name("else") ? parse_expression() : nullptr);
    expr = std::move(conditional);
  }
  return expr;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (is_name("or") && !failed()) {
    const Token op = current();
    advance();
    left = binary(ExprKind::kOr, std::move(left), parse_and(), op);
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (is_name("and") && !failed()) {
    const Token op = current();
    advance();
    left = binary(ExprKind::kAnd, std::move(left), parse_not(), op);
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(depth_);
  if (depth_ > kMaxDepth) {
    fail("expression nested too deep");
    return nullptr;
  }
  ExprPtr expr = make(ExprKind::kNot, current().position);
  advance();
  add(*expr, parse_not());
  return expr;
}

ExprPtr ExpressionParser::parse_compare() {
  constexpr std::array<std::string_view, 6> kCompare = {"==", "!=", "<", "<=", ">", ">="};
  ExprPtr result = parse_sum();
  Expr* compare = nullptr;  // `result`, once there is something to compare
  while (!failed()) {
    std::string op;
    const Position position = current().position;
    if (is(Kind::kOperator) &&
        std::find(kCompare.begin(), kCompare.end(), current().text) != kCompare.end()) {
      op = current().text;
      advance();
    } else if (skip_name("in")) {
      op = "in";
    } else if (is_name("not") && ahead().kind == Kind::kName && ahead().text == "in") {
      advance();
      advance();
      op = "not in";
    } else {
      break;
    }
    if (compare == nullptr) {
      ExprPtr expr = make(ExprKind::kCompare, position);
      compare = expr.get();
      add(*expr, std::move(result));
      result = std::move(expr);
    }
    compare->names.push_back(op);
    add(*compare, parse_sum());
  }
  return result;
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while ((is_op("+") || is_op("-")) && !failed()) {
    const Token op = current();
    advance();
    left = binary(ExprKind::kBinary, std::move(left), parse_concat(), op);
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!is_op("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat, current().position);
  add(*expr, std::move(first));
  while (skip_op("~") && !failed()) add(*expr, parse_product());
  return expr;
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  while ((is_op("*") || is_op("/") || is_op("//") || is_op("%")) && !failed()) {
    const Token op = current();
    advance();
    left = binary(ExprKind::kBinary, std::move(left), parse_power(), op);
  }
  return left;
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (is_op("**") && !failed()) {
    const Token op = current();
    advance();
    left = binary(ExprKind::kBinary, std::move(left), parse_unary(true), op);
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(depth_);
  if (depth_ > kMaxDepth) {
    fail("expression nested too deep");
    return nullptr;
  }
  ExprPtr expr;
  if (is_op("-") || is_op("+")) {
    expr = make(is_op("-") ? ExprKind::kNegate : ExprKind::kPlus, current().position);
    advance();
    add(*expr, parse_unary(false));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filters ? parse_filters(std::move(expr), false) : std::move(expr);
}

ExprPtr ExpressionParser::parse_primary() {
  const Token token = current();
  const auto constant = [&](Value value) {
    ExprPtr expr = make(ExprKind::kConstant, token.position);
    expr->value = std::move(value);
    return expr;
  };
  switch (token.kind) {
    case Kind::kName:
      advance();
      if (token.text == "true" || token.text == "True") return constant(Value::boolean(true));
      if (token.text == "false" || token.text == "False") return constant(Value::boolean(false));
      if (token.text == "none" || token.text == "None") return constant(Value::none());
      return make(ExprKind::kName, token.position, token.text);
    case Kind::kString: {
      std::string text;
      for (; is(Kind::kString); advance()) text += current().text;
      return constant(Value::string(text));
    }
    case Kind::kInteger:
      advance();
      return constant(Value::integer(token.integer));
    case Kind::kFloat:
      advance();
      return constant(Value::number(token.number));
    default:
      break;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  if (skip_op("(")) {
    if (skip_op(")")) return make(ExprKind::kTuple, token.position);
    ExprPtr expr = parse_tuple();
    expect_op(")");
    return expr;
  }
  fail("expected an expression, found " + describe_current());
  return nullptr;
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr list = make(ExprKind::kList, current().position);
  expect_op("[");
  while (!is_op("]") && !failed()) {
    add(*list, parse_expression());
    if (!is_op("]")) expect_op(",");
  }
  expect_op("]");
  return list;
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr dict = make(ExprKind::kDict, current().position);
  expect_op("{");
  while (!is_op("}") && !failed()) {
    add(*dict, parse_expression());
    expect_op(":");
    add(*dict, parse_expression());
    if (!is_op("}")) expect_op(",");
  }
  expect_op("}");
  return dict;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
  while (!failed()) {
    const Position position = current().position;
    if (skip_op(".")) {
      if (is(Kind::kInteger)) {
        ExprPtr index = make(ExprKind::kConstant, current().position);
        index->value = Value::integer(current().integer);
        advance();
        ExprPtr item = make(ExprKind::kItem, position);
        add(*item, std::move(expr));
        add(*item, std::move(index));
        expr = std::move(item);
        continue;
      }
      ExprPtr attribute = make(ExprKind::kAttribute, position, expect_identifier());
      add(*attribute, std::move(expr));
      expr = std::move(attribute);
    } else if (is_op("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (is_op("(")) {
      ExprPtr call = make(ExprKind::kCall, position);
      add(*call, std::move(expr));
      parse_arguments(*call);
      expr = std::move(call);
    } else {
      break;
    }
  }
  return expr;
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr expr) {
  const Position position = current().position;
  expect_op("[");
  ExprPtr parts[3];
  size_t colons = 0;
  while (!is_op("]") && !failed()) {
    if (skip_op(":")) {
      if (++colons > 2) fail("slice with more than two colons");
      continue;
    }
    if (parts[colons] != nullptr) {
      fail("expected \"]\", found " + describe_current());
      break;
    }
    parts[colons] = parse_expression();
  }
  expect_op("]");
  if (colons == 0 && parts[0] == nullptr) fail("empty subscript");
  ExprPtr out = make(colons > 0 ? ExprKind::kSlice : ExprKind::kItem, position);
  add(*out, std::move(expr));
  add(*out, std::move(parts[0]));
  if (colons > 0) {
    add(*out, std::move(parts[1]));
    add(*out, std::move(parts[2]));
  }
  return out;
}

void ExpressionParser::parse_arguments(Expr& call) {
  expect_op("(");
  while (!is_op(")") && !failed()) {
    if (is_op("*") || is_op("**")) {
      fail("argument lists that unpack a value are not supported");
      return;
    }
    if (is(Kind::kName) && ahead().kind == Kind::kOperator && ahead().text == "=") {
      std::string name = current().text;
      advance();
      advance();
      ExprPtr value = parse_expression();
      if (value != nullptr) call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) fail("argument without a name after one with a name");
      add(call, parse_expression());
    }
    if (!is_op(")")) expect_op(",");
  }
  expect_op(")");
}

ExprPtr ExpressionParser::parse_filters(ExprPtr expr, bool first_without_pipe) {
  if (first_without_pipe) expr = parse_filter(std::move(expr));
  while (!failed()) {
    if (skip_op("|")) {
      expr = parse_filter(std::move(expr));
    } else if (is_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (is_op("(")) {
      ExprPtr call = make(ExprKind::kCall, current().position);
      add(*call, std::move(expr));
      parse_arguments(*call);
      expr = std::move(call);
    } else {
      break;
    }
  }
  return expr;
}

ExprPtr ExpressionParser::parse_filter(ExprPtr expr) {
  const Position position = current().position;
  ExprPtr filter = make(ExprKind::kFilter, position, expect_identifier());
  add(*filter, std::move(expr));
  if (is_op("(")) parse_arguments(*filter);
  return filter;
}

ExprPtr ExpressionParser::parse_test(ExprPtr expr) {
  const Position position = current().position;
  advance();
  const bool negated = skip_name("not");
  std::string name;
  if (is(Kind::kOperator) && !is_op("(") && !is_op("[") && !is_op("{")) {
    fail("expected the name of a test, found " + describe_current());
  } else {
    name = expect_identifier();
  }
  ExprPtr test = make(ExprKind::kTest, position, std::move(name));
  add(*test, std::move(expr));
  if (is_op("(")) {
    parse_arguments(*test);
  } else if (is(Kind::kString) || is(Kind::kInteger) || is(Kind::kFloat) || is_op("[") ||
             is_op("{") ||
             (is(Kind::kName) && !is_name("else") && !is_name("or") && !is_name("and") &&
              !is_name("if") && !is_name("is") && !is_name("not") && !is_name("in"))) {
    add(*test, parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  ExprPtr inverse = make(ExprKind::kNot, position);
  add(*inverse, std::move(test));
  return inverse;
}

}  // namespace tandem::text::jinja
