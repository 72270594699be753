// The statement half of the evaluator.
#include "text/template/evaluator.h"
#include "text/template/loop_state.h"
#include "text/template/python.h"

namespace tandem::text::jinja {

Result<MarkedText> Evaluator::run(const Body& body,
                                  std::unordered_map<std::string, Value> variables) {
  const auto scope = std::make_shared<Scope>();
  scope->variables = std::move(variables);
  scopes_.push_back(scope);
  MarkedText result;
  out_ = &result;
  execute(body, scope);
  if (failed_) return error_;
  return result;
}

ScopePtr Evaluator::inner(const ScopePtr& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

void Evaluator::output(const MarkedText& text) {
  if (failed_) return;
  if (text.size() > limits_.output - out_->size()) {
    fail("the template writes more than " + std::to_string(limits_.output) + " bytes");
    return;
  }
  if (charge(text.size() * 2)) out_->append(text);
}

Evaluator::Flow Evaluator::execute(const Body& body, const ScopePtr& scope) {
  if (depth_ >= limits_.depth) {
    fail("expressions and calls nested too deep");
    return Flow::kStop;
  }
  ++depth_;
  Flow flow = Flow::kNext;
  for (const StmtPtr& stmt : body) {
    flow = execute(*stmt, scope);
    if (failed_) flow = Flow::kStop;
    if (flow != Flow::kNext) break;
  }
  --depth_;
  return flow;
}

Evaluator::Flow Evaluator::execute(const Stmt& stmt, const ScopePtr& scope) {
  if (!step()) return Flow::kStop;
  position_ = stmt.position;
  switch (stmt.kind) {
    case StmtKind::kText:
      output(MarkedText(stmt.text, false));
      return Flow::kNext;
    case StmtKind::kOutput: {
      const Value value = evaluate(*stmt.expr, scope);
      if (!failed_) output(to_text(*this, value));
      return Flow::kNext;
    }
    case StmtKind::kIf:
      return execute_if(stmt, scope);
    case StmtKind::kFor:
      return execute_for(stmt, scope);
    case StmtKind::kSet:
      execute_set(stmt, scope);
      return Flow::kNext;
    case StmtKind::kSetBlock:
      execute_set_block(stmt, scope);
      return Flow::kNext;
    case StmtKind::kMacro:
      if (!charge(sizeof(Scope))) return Flow::kStop;
      scope->variables[stmt.text] = make_macro(stmt, scope);
      return Flow::kNext;
    case StmtKind::kCall:
      execute_call(stmt, scope);
      return Flow::kNext;
    case StmtKind::kFilter:
      execute_filter(stmt, scope);
      return Flow::kNext;
    case StmtKind::kWith:
      return execute_with(stmt, scope);
    case StmtKind::kScope:
      return execute(stmt.body, inner(scope));
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute_if(const Stmt& stmt, const ScopePtr& scope) {
  for (const auto& [condition, body] : stmt.branches) {
    if (condition != nullptr && !evaluate(*condition, scope).truthy()) {
      if (failed_) return Flow::kStop;
      continue;
    }
    return execute(body, scope);
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute_for(const Stmt& stmt, const ScopePtr& scope) {
  const Value iterated = evaluate(*stmt.expr, scope);
  position_ = stmt.position;
  std::shared_ptr<const List> items = iterate(iterated);
  if (stmt.test != nullptr) {
    List chosen;
    for (const Value& item : *items) {
      const ScopePtr local = inner(scope);
      if (!step() || !assign(stmt.names, item, *local)) return Flow::kStop;
      if (evaluate(*stmt.test, local).truthy()) chosen.push_back(item);
    }
    if (!charge(chosen.size() * sizeof(Value))) return Flow::kStop;
    items = std::make_shared<const List>(std::move(chosen));
  }
  if (failed_) return Flow::kStop;
  if (items->empty()) return execute(stmt.else_body, inner(scope));
  const auto loop = std::make_shared<LoopState>();
  loop->items = items;
  for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
    if (at->loop == nullptr) continue;
    loop->depth = at->loop->depth + 1;
    break;
  }
  for (size_t i = 0; i < items->size(); ++i) {
    loop->index = i;
    const ScopePtr local = inner(scope);
    local->loop = loop;
    position_ = stmt.position;
    if (!step() || !assign(stmt.names, (*items)[i], *local)) return Flow::kStop;
    const Flow flow = execute(stmt.body, local);
    if (flow == Flow::kStop) return flow;
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

bool Evaluator::assign(const std::vector<std::string>& names, const Value& value, Scope& scope) {
  if (names.size() == 1) {
    scope.variables[names[0]] = value;
    return true;
  }
  const std::shared_ptr<const List> items = iterate(value);
  if (failed_) return false;
  if (items->size() != names.size()) {
    fail("expected " + std::to_string(names.size()) + " values to unpack, found " +
         std::to_string(items->size()));
    return false;
  }
  for (size_t i = 0; i < names.size(); ++i) scope.variables[names[i]] = (*items)[i];
  return true;
}

void Evaluator::set_variable(const Stmt& stmt, const ScopePtr& scope, const Value& value) {
  position_ = stmt.position;
  if (failed_) return;
  if (stmt.attribute.empty()) {
    assign(stmt.names, value, *scope);
    return;
  }
  const Value* found = find(*scope, stmt.names[0]);
  if (found == nullptr || !found->is_namespace()) {
    fail("\"" + stmt.names[0] + "\" is no namespace, its attributes cannot be set");
    return;
  }
  if (charge(4 * sizeof(Value))) found->as_namespace().set(stmt.attribute, value);
}

void Evaluator::execute_set(const Stmt& stmt, const ScopePtr& scope) {
  set_variable(stmt, scope, evaluate(*stmt.expr, scope));
}

void Evaluator::execute_set_block(const Stmt& stmt, const ScopePtr& scope) {
  Value value = text(capture(stmt.body, inner(scope)));
  if (stmt.expr != nullptr) value = evaluate_filter(*stmt.expr, scope, &value);
  set_variable(stmt, scope, value);
}

MarkedText Evaluator::capture(const Body& body, const ScopePtr& scope) {
  MarkedText captured;
  MarkedText* const outer = std::exchange(out_, &captured);
  execute(body, scope);
  out_ = outer;
  return captured;
}

Value Evaluator::make_macro(const Stmt& stmt, const ScopePtr& scope) {
  scopes_.push_back(scope);
  return Value::function([&stmt, scope](Evaluator& evaluator, const Arguments& arguments) {
    return evaluator.call_macro(stmt, scope, arguments);
  });
}

Value Evaluator::call_macro(const Stmt& stmt, const ScopePtr& scope, const Arguments& arguments) {
  const ScopePtr local = inner(scope);
  const size_t count = stmt.names.size();
  const size_t first_default = count - stmt.defaults.size();
  List extra;
  for (size_t i = count; i < arguments.positional.size(); ++i) {
    extra.push_back(arguments.positional[i]);
  }
  Dict extra_named;
  for (const auto& [name, value] : arguments.named) {
    bool is_parameter = name == "caller";
    for (const std::string& parameter : stmt.names) is_parameter |= parameter == name;
    if (is_parameter) {
      local->variables[name] = value;
    } else {
      extra_named.set(name, value);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = stmt.names[i];
    if (i < arguments.positional.size()) {
      local->variables[name] = arguments.positional[i];
    } else if (!local->variables.contains(name)) {
      local->variables[name] = i < first_default
                                   ? Value::undefined(name)
                                   : evaluate(*stmt.defaults[i - first_default], local);
    }
  }
  local->variables["varargs"] = tuple(std::move(extra));
  local->variables["kwargs"] = dict(std::move(extra_named));
  if (failed_) return {};
  return text(capture(stmt.body, local));
}

void Evaluator::execute_call(const Stmt& stmt, const ScopePtr& scope) {
  if (!charge(sizeof(Scope))) return;
  const Value caller = make_macro(stmt, scope);
  const Value value = evaluate_call(*stmt.expr, scope, &caller);
  if (!failed_) output(to_text(*this, value));
}

void Evaluator::execute_filter(const Stmt& stmt, const ScopePtr& scope) {
  const Value captured = text(capture(stmt.body, inner(scope)));
  const Value value = evaluate_filter(*stmt.expr, scope, &captured);
  if (!failed_) output(to_text(*this, value));
}

Evaluator::Flow Evaluator::execute_with(const Stmt& stmt, const ScopePtr& scope) {
  const ScopePtr local = inner(scope);
  for (size_t i = 0; i < stmt.names.size(); ++i) {
    local->variables[stmt.names[i]] = evaluate(*stmt.defaults[i], scope);
  }
  return failed_ ? Flow::kStop : execute(stmt.body, local);
}

}  // namespace tandem::text::jinja
