// The expression half of the evaluator, and the sandbox's accounts.
#include "text/template/evaluator.h"

#include <algorithm>

#include "text/template/loop_state.h"
#include "text/template/python.h"
#include "text/template/text_ops.h"

namespace tandem::text::jinja {

Evaluator::~Evaluator() {
  for (const ScopePtr& scope : scopes_) scope->variables.clear();
  for (const auto& members : namespaces_) members->clear();
}

Value Evaluator::fail(const std::string& message) {
  if (!failed_) {
    failed_ = true;
    error_ = invalid(to_string(position_) + ": " + message);
  }
  return {};
}

bool Evaluator::step(uint64_t count) {
  if (failed_) return false;
  steps_ += count;
  if (steps_ <= limits_.steps) return true;
  fail("the template takes more than " + std::to_string(limits_.steps) + " steps");
  return false;
}

bool Evaluator::charge_scan(const Value& value) {
  // What costs about as much as evaluating an expression.
  constexpr uint64_t kBytesAStep = 32;
  constexpr uint64_t kItemsAStep = 4;
  if (value.is_string()) return step(value.as_text().size() / kBytesAStep);
  if (value.is_sequence()) return step(value.as_list().size() / kItemsAStep);
  if (value.is_dict()) return step(value.as_dict().size() / kItemsAStep);
  return !failed_;
}

bool Evaluator::allows(uint64_t bytes) {
  if (failed_) return false;
  if (bytes <= limits_.bytes - bytes_) return true;
  fail("the template uses more than " + std::to_string(limits_.bytes) + " bytes");
  return false;
}

bool Evaluator::charge(uint64_t bytes) {
  if (!allows(bytes)) return false;
  bytes_ += bytes;
  return true;
}

Value Evaluator::text(MarkedText text) {
  if (!charge(text.size() * 2 + sizeof(MarkedText))) return {};
  return Value::string(std::move(text));
}

Value Evaluator::list(List items) {
  if (!charge((items.size() + 1) * sizeof(Value))) return {};
  Value value = Value::list(std::move(items));
  return value.depth() > limits_.value_depth ? fail("lists nested too deep") : value;
}

Value Evaluator::tuple(List items) {
  if (!charge((items.size() + 1) * sizeof(Value))) return {};
  Value value = Value::tuple(std::move(items));
  return value.depth() > limits_.value_depth ? fail("lists nested too deep") : value;
}

Value Evaluator::dict(Dict members) {
  // An entry is two values, an index and its key.
  if (!charge((members.size() + 1) * 4 * sizeof(Value))) return {};
  Value value = Value::dict(std::move(members));
  return value.depth() > limits_.value_depth ? fail("dicts nested too deep") : value;
}

Value Evaluator::name_space(Dict members) {
  if (!charge((members.size() + 1) * 4 * sizeof(Value))) return {};
  namespaces_.push_back(std::make_shared<Dict>(std::move(members)));
  return Value::name_space(namespaces_.back());
}

std::shared_ptr<const List> Evaluator::iterate(const Value& value) {
  static const auto kEmpty = std::make_shared<const List>();
  if (value.is_sequence()) return value.list_pointer();
  if (value.is_undefined()) return kEmpty;
  auto items = std::make_shared<List>();
  if (value.is_dict()) {
    for (const auto& [key, member] : value.as_dict().entries()) items->push_back(key);
  } else if (value.is_string()) {
    const MarkedText& all = value.as_text();
    if (!charge(all.size() * (sizeof(Value) + sizeof(MarkedText)))) return kEmpty;
    const std::vector<size_t> offsets = character_offsets(all);
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      items->push_back(Value::string(all.substr(offsets[i], offsets[i + 1] - offsets[i])));
    }
    return items;
  } else {
    fail("a value of type " + std::string(value.type_name()) + " cannot be iterated over");
    return kEmpty;
  }
  charge(items->size() * sizeof(Value));
  return items;
}

Value Evaluator::evaluate(const Expr& expr, const ScopePtr& scope) {
  if (!step()) return {};
  if (depth_ >= limits_.depth) return fail("expressions and calls nested too deep");
  ++depth_;
  Value value = evaluate_inner(expr, scope);
  --depth_;
  return value;
}

Value Evaluator::evaluate_inner(const Expr& expr, const ScopePtr& scope) {
  position_ = expr.position;
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.value;
    case ExprKind::kName:
      return evaluate_name(expr, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return evaluate_collection(expr, scope);
    case ExprKind::kDict:
      return evaluate_dict(expr, scope);
    case ExprKind::kNot:
      return Value::boolean(!evaluate(*expr.children[0], scope).truthy());
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return evaluate_unary(expr, scope);
    case ExprKind::kBinary: {
      const Value left = evaluate(*expr.children[0], scope);
      const Value right = evaluate(*expr.children[1], scope);
      position_ = expr.position;
      return binary(expr.name, left, right);
    }
    case ExprKind::kConcat:
      return evaluate_concat(expr, scope);
    case ExprKind::kAnd: {
      Value left = evaluate(*expr.children[0], scope);
      return left.truthy() ? evaluate(*expr.children[1], scope) : left;
    }
    case ExprKind::kOr: {
      Value left = evaluate(*expr.children[0], scope);
      return left.truthy() ? left : evaluate(*expr.children[1], scope);
    }
    case ExprKind::kCompare:
      return evaluate_compare(expr, scope);
    case ExprKind::kConditional:
      return evaluate_conditional(expr, scope);
    case ExprKind::kAttribute:
      return evaluate_attribute(expr, scope);
    case ExprKind::kItem: {
      const Value object = evaluate(*expr.children[0], scope);
      const Value key = evaluate(*expr.children[1], scope);
      position_ = expr.position;
      return item(object, key);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr, scope);
    case ExprKind::kCall:
      return evaluate_call(expr, scope, nullptr);
    case ExprKind::kFilter:
      return evaluate_filter(expr, scope, nullptr);
    case ExprKind::kTest: {
      const Value value = evaluate(*expr.children[0], scope);
      const Arguments arguments = evaluate_arguments(expr, scope);
      position_ = expr.position;
      return Value::boolean(test(expr.name, value, arguments));
    }
  }
  return {};
}

const Value* Evaluator::find(const Scope& scope, const std::string& name) {
  for (const Scope* at = &scope; at != nullptr; at = at->parent.get()) {
    const auto found = at->variables.find(name);
    if (found != at->variables.end()) return &found->second;
  }
  return nullptr;
}

Value Evaluator::evaluate_name(const Expr& expr, const ScopePtr& scope) {
  if (const Value* found = find(*scope, expr.name)) return *found;
  if (expr.name == "loop") {
    for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
      if (at->loop == nullptr) continue;
      Dict members;
      for (const std::string_view name :
           {"index", "index0", "revindex", "revindex0", "first", "last", "length", "depth",
            "depth0", "previtem", "nextitem", "cycle", "changed"}) {
        members.set(name, loop_member(at->loop, name));
      }
      return dict(std::move(members));
    }
  }
  if (const Builtin* global = find_global(expr.name)) {
    return Value::function([global](Evaluator& evaluator, const Arguments& arguments) {
      return call_builtin(evaluator, *global, {}, arguments);
    });
  }
  return Value::undefined(expr.name);
}

Value Evaluator::evaluate_collection(const Expr& expr, const ScopePtr& scope) {
  List items;
  for (const ExprPtr& child : expr.children) items.push_back(evaluate(*child, scope));
  return expr.kind == ExprKind::kTuple ? tuple(std::move(items)) : list(std::move(items));
}

Value Evaluator::evaluate_dict(const Expr& expr, const ScopePtr& scope) {
  Dict members;
  for (size_t i = 0; i + 1 < expr.children.size() && !failed_; i += 2) {
    const Value key = evaluate(*expr.children[i], scope);
    Value value = evaluate(*expr.children[i + 1], scope);
    position_ = expr.position;
    if (!charge_scan(key)) return {};
    if (!members.set(key, std::move(value))) {
      return fail("a value of type " + std::string(key.type_name()) + " cannot be a key");
    }
  }
  return dict(std::move(members));
}

Value Evaluator::evaluate_unary(const Expr& expr, const ScopePtr& scope) {
  const Value value = evaluate(*expr.children[0], scope);
  position_ = expr.position;
  const bool negate = expr.kind == ExprKind::kNegate;
  if (value.is_float()) {
    return Value::number(negate ? -value.as_float() : value.as_float(), value.from_outside());
  }
  if (!value.is_number()) {
    return fail("a value of type " + std::string(value.type_name()) + " has no sign");
  }
  return negate ? binary("-", Value::integer(0), value)
                : Value::integer(value.as_int(), value.from_outside());
}

Value Evaluator::evaluate_concat(const Expr& expr, const ScopePtr& scope) {
  MarkedText out;
  for (const ExprPtr& child : expr.children) {
    const Value value = evaluate(*child, scope);
    if (failed_) return {};
    out.append(to_text(*this, value));
    if (!allows(out.size() * 2)) return {};
  }
  return text(std::move(out));
}

Value Evaluator::evaluate_compare(const Expr& expr, const ScopePtr& scope) {
  Value left = evaluate(*expr.children[0], scope);
  for (size_t i = 0; i < expr.names.size(); ++i) {
    Value right = evaluate(*expr.children[i + 1], scope);
    if (failed_) return {};
    position_ = expr.position;
    const std::string& op = expr.names[i];
    const bool holds = op == "=="       ? equal(left, right)
                       : op == "!="     ? !equal(left, right)
                       : op == "in"     ? contains(right, left)
                       : op == "not in" ? !contains(right, left)
                       : op == "<"      ? compare(left, right) < 0
                       : op == "<="     ? compare(left, right) <= 0
                       : op == ">"      ? compare(left, right) > 0
                                        : compare(left, right) >= 0;
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Evaluator::evaluate_conditional(const Expr& expr, const ScopePtr& scope) {
  if (evaluate(*expr.children[1], scope).truthy()) return evaluate(*expr.children[0], scope);
  return expr.children[2] == nullptr ? Value() : evaluate(*expr.children[2], scope);
}

Value Evaluator::evaluate_attribute(const Expr& expr, const ScopePtr& scope) {
  const Expr& base = *expr.children[0];
  // loop.index and the like without making a whole loop object.
  if (base.kind == ExprKind::kName && base.name == "loop" && find(*scope, base.name) == nullptr) {
    for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
      if (at->loop != nullptr) return loop_member(at->loop, expr.name);
    }
  }
  const Value object = evaluate(base, scope);
  position_ = expr.position;
  return attribute(object, expr.name);
}

Value Evaluator::evaluate_slice(const Expr& expr, const ScopePtr& scope) {
  const Value object = evaluate(*expr.children[0], scope);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1] == nullptr) continue;
    const Value bound = evaluate(*expr.children[i + 1], scope);
    if (bound.is_none()) continue;
    if (!bound.is_int() && !bound.is_bool()) {
      return fail("a slice's bound must be an integer, found " + std::string(bound.type_name()));
    }
    bounds[i] = bound.as_int();
  }
  position_ = expr.position;
  if (!charge_scan(object)) return {};
  if (!object.is_string() && !object.is_sequence()) {
    return fail("a value of type " + std::string(object.type_name()) + " cannot be sliced");
  }
  const std::vector<size_t> offsets =
      object.is_string() ? character_offsets(object.as_text()) : std::vector<size_t>();
  const auto size =
      static_cast<int64_t>(object.is_string() ? offsets.size() - 1 : object.as_list().size());
  const int64_t stride = bounds[2].value_or(1);
  if (stride == 0) return fail("a slice's step must not be zero");
  const auto clamp = [size, stride](int64_t bound) {
    if (bound < 0) bound = bound < -size ? -1 : bound + size;
    if (stride > 0) return std::clamp<int64_t>(bound, 0, size);
    return std::clamp<int64_t>(bound, -1, size - 1);
  };
  const int64_t begin = bounds[0].has_value() ? clamp(*bounds[0]) : stride > 0 ? 0 : size - 1;
  const int64_t end = bounds[1].has_value() ? clamp(*bounds[1]) : stride > 0 ? size : -1;
  MarkedText characters;
  List items;
  for (int64_t i = begin; stride > 0 ? i < end : i > end;) {
    if (!step()) return {};
    const auto at = static_cast<size_t>(i);
    if (object.is_string()) {
      characters.append(object.as_text(), offsets[at], offsets[at + 1] - offsets[at]);
    } else {
      items.push_back(object.as_list()[at]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (object.is_string()) return text(std::move(characters));
  return object.is_tuple() ? tuple(std::move(items)) : list(std::move(items));
}

Arguments Evaluator::evaluate_arguments(const Expr& expr, const ScopePtr& scope) {
  Arguments arguments;
  for (size_t i = 1; i < expr.children.size(); ++i) {
    arguments.positional.push_back(evaluate(*expr.children[i], scope));
  }
  for (const auto& [name, value] : expr.named) {
    arguments.named.emplace_back(name, evaluate(*value, scope));
  }
  return arguments;
}

Value Evaluator::evaluate_call(const Expr& expr, const ScopePtr& scope, const Value* caller) {
  const Value function = evaluate(*expr.children[0], scope);
  Arguments arguments = evaluate_arguments(expr, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  position_ = expr.position;
  return call(function, arguments);
}

Value Evaluator::evaluate_filter(const Expr& expr, const ScopePtr& scope, const Value* input) {
  // A filter block's chain begins with a null child: there the block's text goes in.
  Value value;
  if (expr.children[0] == nullptr) {
    if (input != nullptr) value = *input;
  } else if (input != nullptr && expr.children[0]->kind == ExprKind::kFilter) {
    value = evaluate_filter(*expr.children[0], scope, input);
  } else {
    value = evaluate(*expr.children[0], scope);
  }
  const Arguments arguments = evaluate_arguments(expr, scope);
  position_ = expr.position;
  return filter(expr.name, value, arguments);
}

Value Evaluator::call(const Value& function, const Arguments& arguments) {
  if (failed_) return {};
  if (function.is_undefined()) {
    return fail("\"" + function.undefined_name() + "\" is undefined and cannot be called");
  }
  if (!function.is_function()) {
    return fail("a value of type " + std::string(function.type_name()) + " cannot be called");
  }
  if (depth_ >= limits_.depth) return fail("expressions and calls nested too deep");
  ++depth_;
  Value value = function.as_function()(*this, arguments);
  --depth_;
  return value;
}

Value Evaluator::filter(std::string_view name, const Value& value, const Arguments& arguments) {
  if (failed_) return {};
  const Builtin* found = find_text_filter(name);
  if (found == nullptr) found = find_list_filter(name);
  if (found == nullptr) return fail("unknown filter \"" + std::string(name.substr(0, 60)) + "\"");
  return call_builtin(*this, *found, value, arguments);
}

bool Evaluator::test(std::string_view name, const Value& value, const Arguments& arguments) {
  if (failed_) return false;
  const Builtin* found = find_test(name);
  if (found == nullptr) {
    fail("unknown test \"" + std::string(name.substr(0, 60)) + "\"");
    return false;
  }
  return call_builtin(*this, *found, value, arguments).truthy();
}

Value call_builtin(Evaluator& evaluator, const Builtin& builtin, const Value& self,
                   const Arguments& arguments) {
  if (!evaluator.charge_scan(self)) return {};
  for (const Value& value : arguments.positional) {
    if (!evaluator.charge_scan(value)) return {};
  }
  for (const auto& [name, value] : arguments.named) {
    if (!evaluator.charge_scan(value)) return {};
  }
  if (builtin.parameters == "*") return builtin.call(evaluator, self, arguments);
  Arguments sorted;
  size_t place = 0;
  size_t named_used = 0;
  std::string_view rest = builtin.parameters;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    Value value;
    if (place < arguments.positional.size()) value = arguments.positional[place];
    for (const auto& [given, named] : arguments.named) {
      if (given != name) continue;
      value = named;
      ++named_used;
    }
    ++place;
    sorted.positional.push_back(std::move(value));
  }
  if (arguments.positional.size() > place) {
    return evaluator.fail("\"" + std::string(builtin.name) + "\" takes at most " +
                          std::to_string(place) + " arguments, found " +
                          std::to_string(arguments.positional.size()));
  }
  if (named_used < arguments.named.size()) {
    return evaluator.fail("\"" + std::string(builtin.name) +
                          "\" was given an argument that it does not know");
  }
  return builtin.call(evaluator, self, sorted);
}

}  // namespace tandem::text::jinja
