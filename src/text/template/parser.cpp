#include "text/template/parser.h"

#include <algorithm>
#include <array>

#include "text/template/expression_parser.h"

namespace tandem::text::jinja {

namespace {

using Kind = Token::Kind;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body parse_all() {
    Body body = parse_body({});
    if (!failed() && !is(Kind::kEnd)) fail("unexpected " + describe_current());
    return body;
  }

 private:
  using Names = std::vector<std::string_view>;

  [[nodiscard]] bool at_end_tag(const Names& names) const {
    return ahead().kind == Kind::kName &&
           std::find(names.begin(), names.end(), ahead().text) != names.end();
  }

  /// Statements until one of the tags in `ends`, which is left unread.
  Body parse_body(const Names& ends) {
    Body body;
    if (++depth_ > kMaxDepth) fail("blocks nested too deep");
    while (!failed() && !is(Kind::kEnd)) {
      if (is(Kind::kText)) {
        body.push_back(statement(StmtKind::kText, current().position));
        body.back()->text = current().text;
        advance();
      } else if (is(Kind::kVariableBegin)) {
        advance();
        body.push_back(statement(StmtKind::kOutput, current().position));
        body.back()->expr = parse_tuple();
        close(Kind::kVariableEnd, "}}");
      } else if (is(Kind::kBlockBegin)) {
        if (at_end_tag(ends)) break;
        advance();
        StmtPtr block = parse_block();
        if (block != nullptr) body.push_back(std::move(block));
      } else {
        fail("unexpected " + describe_current());
      }
    }
    if (!ends.empty() && is(Kind::kEnd)) {
      fail("expected \"{% " + std::string(ends.back()) + " %}\", found the end of the template");
    }
    --depth_;
    return body;
  }

  static StmtPtr statement(StmtKind kind, Position position) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->position = position;
    return stmt;
  }

  void close(Kind kind, std::string_view spelling) {
    if (is(kind)) {
      advance();
    } else {
      fail("expected \"" + std::string(spelling) + "\", found " + describe_current());
    }
  }
  void close_block() { close(Kind::kBlockEnd, "%}"); }
  /// {% name %} with the begin still unread.
  void end_tag(std::string_view name) {
    close(Kind::kBlockBegin, "{%");
    if (!skip_name(name))
      fail("expected \"" + std::string(name) + "\", found " + describe_current());
    close_block();
  }

  StmtPtr parse_block() {
    const Position position = current().position;
    const std::string name = expect_identifier();
    if (name == "if") return parse_if(position);
    if (name == "for") return parse_for(position);
    if (name == "set") return parse_set(position);
    if (name == "macro") return parse_macro(position);
    if (name == "call") return parse_call(position);
    if (name == "filter") return parse_filter_block(position);
    if (name == "with") return parse_with(position);
    if (name == "generation") return parse_generation(position);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail("\"" + name + "\" outside of a loop");
      close_block();
      return statement(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, position);
    }
    fail("unknown or unsupported tag \"" + name.substr(0, 60) + "\"");
    return nullptr;
  }

  StmtPtr parse_if(Position position) {
    StmtPtr stmt = statement(StmtKind::kIf, position);
    ExprPtr test = parse_expression();
    close_block();
    while (!failed()) {
      stmt->branches.emplace_back(std::move(test), parse_body({"elif", "else", "endif"}));
      const bool was_else = stmt->branches.back().first == nullptr;
      close(Kind::kBlockBegin, "{%");
      if (skip_name("endif")) break;
      if (was_else) fail("expected \"endif\", found " + describe_current());
      if (skip_name("elif")) {
        test = parse_expression();
      } else if (skip_name("else")) {
        test = nullptr;
      }
      close_block();
    }
    close_block();
    return stmt;
  }

  /// a, or a, b, with or without parentheses.
  std::vector<std::string> parse_targets() {
    std::vector<std::string> names;
    const bool parenthesis = skip_op("(");
    do {
      names.push_back(expect_identifier());
    } while (skip_op(",") && !failed() && is(Kind::kName) && !is_name("in"));
    if (parenthesis) expect_op(")");
    return names;
  }

  StmtPtr parse_for(Position position) {
    StmtPtr stmt = statement(StmtKind::kFor, position);
    stmt->names = parse_targets();
    if (!skip_name("in")) fail("expected \"in\", found " + describe_current());
    stmt->expr = parse_iterated();
    if (skip_name("if")) stmt->test = parse_expression();
    if (is_name("recursive")) fail("recursive loops are not supported");
    close_block();
    ++loops_;
    stmt->body = parse_body({"else", "endfor"});
    --loops_;
    if (ahead().text == "else" && is(Kind::kBlockBegin)) {
      advance();
      advance();
      close_block();
      stmt->else_body = parse_body({"endfor"});
    }
    end_tag("endfor");
    return stmt;
  }

  /// What a loop goes over: no conditional, since `if` begins the loop's filter.
  ExprPtr parse_iterated() {
    const Position position = current().position;
    ExprPtr first = parse_without_condition();
    if (!is_op(",")) return first;
    auto tuple = std::make_unique<Expr>();
    tuple->kind = ExprKind::kTuple;
    tuple->position = position;
    tuple->depth = first == nullptr ? 1 : first->depth + 1;
    tuple->children.push_back(std::move(first));
    while (skip_op(",") && !failed()) {
      if (is(Kind::kBlockEnd)) break;
      ExprPtr next = parse_without_condition();
      if (next != nullptr) tuple->depth = std::max(tuple->depth, next->depth + 1);
      tuple->children.push_back(std::move(next));
    }
    return tuple;
  }

  StmtPtr parse_set(Position position) {
    StmtPtr stmt = statement(StmtKind::kSet, position);
    stmt->names = parse_targets();
    if (stmt->names.size() == 1 && skip_op(".")) stmt->attribute = expect_identifier();
    if (skip_op("=")) {
      stmt->expr = parse_tuple();
      close_block();
      return stmt;
    }
    if (stmt->names.size() != 1) fail("expected \"=\", found " + describe_current());
    stmt->kind = StmtKind::kSetBlock;
    if (is_op("|")) stmt->expr = parse_filters(nullptr, false);
    close_block();
    stmt->body = parse_body({"endset"});
    end_tag("endset");
    return stmt;
  }

  void parse_parameters(Stmt& stmt) {
    expect_op("(");
    while (!is_op(")") && !failed()) {
      stmt.names.push_back(expect_identifier());
      if (skip_op("=")) {
        stmt.defaults.push_back(parse_expression());
      } else if (!stmt.defaults.empty()) {
        fail("parameter without a default after one with a default");
      }
      if (!is_op(")")) expect_op(",");
    }
    expect_op(")");
  }

  /// A macro's body: a loop around it is none of its own.
  Body parse_callable_body(std::string_view end) {
    const uint32_t outer = std::exchange(loops_, 0);
    Body body = parse_body({end});
    loops_ = outer;
    end_tag(end);
    return body;
  }

  StmtPtr parse_macro(Position position) {
    StmtPtr stmt = statement(StmtKind::kMacro, position);
    stmt->text = expect_identifier();
    parse_parameters(*stmt);
    close_block();
    stmt->body = parse_callable_body("endmacro");
    return stmt;
  }

  StmtPtr parse_call(Position position) {
    StmtPtr stmt = statement(StmtKind::kCall, position);
    if (is_op("(")) parse_parameters(*stmt);
    stmt->expr = parse_expression();
    if (stmt->expr != nullptr && stmt->expr->kind != ExprKind::kCall) fail("expected a call");
    close_block();
    stmt->body = parse_callable_body("endcall");
    return stmt;
  }

  StmtPtr parse_filter_block(Position position) {
    StmtPtr stmt = statement(StmtKind::kFilter, position);
    stmt->expr = parse_filters(nullptr, true);
    close_block();
    stmt->body = parse_body({"endfilter"});
    end_tag("endfilter");
    return stmt;
  }

  StmtPtr parse_with(Position position) {
    StmtPtr stmt = statement(StmtKind::kWith, position);
    while (!is(Kind::kBlockEnd) && !failed()) {
      stmt->names.push_back(expect_identifier());
      expect_op("=");
      stmt->defaults.push_back(parse_expression());
      if (!is(Kind::kBlockEnd)) expect_op(",");
    }
    close_block();
    stmt->body = parse_body({"endwith"});
    end_tag("endwith");
    return stmt;
  }

  StmtPtr parse_generation(Position position) {
    StmtPtr stmt = statement(StmtKind::kScope, position);
    close_block();
    stmt->body = parse_body({"endgeneration"});
    end_tag("endgeneration");
    return stmt;
  }

  uint32_t loops_ = 0;
};

}  // namespace

Result<Body> parse_template(std::string_view source) {
  TANDEM_ASSIGN(std::vector<Token> tokens, tokenize(source));
  Parser parser(std::move(tokens));
  Body body = parser.parse_all();
  if (parser.failed()) return parser.error();
  return body;
}

}  // namespace tandem::text::jinja
