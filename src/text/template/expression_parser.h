// The expression half of the parser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/template/ast.h"
#include "text/template/lexer.h"

namespace tandem::text::jinja {

/// Reads expressions off a list of tokens. The first error sticks: from then on the current token
/// is the end of the template, and results may be null.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] const Error& error() const { return error_; }

 protected:
  /// Nesting of expressions and of statements, each; real templates stay under 20.
  static constexpr uint32_t kMaxDepth = 100;
  /// Operators in a row nest too, without costing the parser any stack.
  static constexpr uint32_t kMaxExprDepth = 400;

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const {
    return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_];
  }
  void advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  [[nodiscard]] bool is(Token::Kind kind) const { return current().kind == kind; }
  [[nodiscard]] bool is_op(std::string_view op) const {
    return is(Token::Kind::kOperator) && current().text == op;
  }
  [[nodiscard]] bool is_name(std::string_view name) const {
    return is(Token::Kind::kName) && current().text == name;
  }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_identifier();
  void fail(const std::string& message);
  [[nodiscard]] std::string describe_current() const;

  ExprPtr parse_expression();
  /// An expression without `a if b else c` at its top.
  ExprPtr parse_without_condition() { return parse_or(); }
  /// One expression, or several with commas between as a tuple.
  ExprPtr parse_tuple();
  /// Filters after `expr`, which may be null in a filter block.
  ExprPtr parse_filters(ExprPtr expr, bool first_without_pipe);
  void parse_arguments(Expr& call);

  uint32_t depth_ = 0;

 private:
  ExprPtr make(ExprKind kind, Position position, std::string name = {}) const;
  void add(Expr& parent, ExprPtr child);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_filter(ExprPtr expr);
  ExprPtr parse_test(ExprPtr expr);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr binary(ExprKind kind, ExprPtr left, ExprPtr right, const Token& op);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  bool failed_ = false;
  Error error_;
};

}  // namespace tandem::text::jinja
