// Runs a parsed chat template in a sandbox.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/template/ast.h"
#include "text/template/value.h"

namespace tandem::text::jinja {

/// What one rendering may use. A real conversation stays far below all of them.
struct Limits {
  uint64_t steps = 10'000'000;           ///< expressions, statements and items
  uint64_t bytes = uint64_t{256} << 20;  ///< of strings and lists made, all together
  uint64_t output = uint64_t{32} << 20;  ///< of text rendered
  uint32_t depth = 600;                  ///< of expressions and calls inside each other
  uint32_t value_depth = 200;            ///< of lists and dicts inside each other
};

struct LoopState;

/// Variables of a block, inside those of the blocks around it.
struct Scope {
  std::unordered_map<std::string, Value> variables;
  std::shared_ptr<LoopState> loop;
  std::shared_ptr<Scope> parent;
};
using ScopePtr = std::shared_ptr<Scope>;

/// One rendering. The first error sticks: from then on every operation does nothing and gives an
/// undefined value. Not thread-safe; make one for each rendering.
class Evaluator {
 public:
  Evaluator(const Limits& limits, std::chrono::system_clock::time_point now)
      : limits_(limits), now_(now) {}
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Renders the template with the given variables.
  Result<MarkedText> run(const Body& body, std::unordered_map<std::string, Value> variables);

  // What filters, tests, methods and functions need.

  /// Notes an error at the current place in the template.
  Value fail(const std::string& message);
  [[nodiscard]] bool failed() const { return failed_; }
  /// Counts a step; false if there is no more or an error was noted.
  bool step(uint64_t count = 1);
  /// Counts the steps of one pass over a value's text or items.
  bool charge_scan(const Value& value);
  /// False (and an error) if `bytes` more would be too many; charges nothing.
  bool allows(uint64_t bytes);
  /// Charges memory; false if it is used up.
  bool charge(uint64_t bytes);
  /// Values, charged.
  Value text(MarkedText text);
  Value text(std::string_view text) { return this->text(MarkedText(std::string(text), false)); }
  Value list(List items);
  Value tuple(List items);
  Value dict(Dict members);
  Value name_space(Dict members);
  [[nodiscard]] std::chrono::system_clock::time_point now() const { return now_; }

  /// The items that a loop over the value would go through.
  std::shared_ptr<const List> iterate(const Value& value);
  bool equal(const Value& a, const Value& b);
  /// Negative, zero or positive; an error for values that have no order.
  int compare(const Value& a, const Value& b);
  bool contains(const Value& container, const Value& item);
  Value binary(std::string_view op, const Value& a, const Value& b);
  /// `object.name`: methods first, then members.
  Value attribute(const Value& object, std::string_view name);
  /// `object[key]`.
  Value item(const Value& object, const Value& key);
  /// A dotted path of attributes or indexes, as `map(attribute="a.b")` has it.
  Value path(const Value& object, std::string_view path);
  Value call(const Value& function, const Arguments& arguments);
  Value filter(std::string_view name, const Value& value, const Arguments& arguments);
  bool test(std::string_view name, const Value& value, const Arguments& arguments);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue, kStop };

  Value evaluate(const Expr& expr, const ScopePtr& scope);
  Value evaluate_inner(const Expr& expr, const ScopePtr& scope);
  Value evaluate_name(const Expr& expr, const ScopePtr& scope);
  Value evaluate_collection(const Expr& expr, const ScopePtr& scope);
  Value evaluate_dict(const Expr& expr, const ScopePtr& scope);
  Value evaluate_concat(const Expr& expr, const ScopePtr& scope);
  Value evaluate_compare(const Expr& expr, const ScopePtr& scope);
  Value evaluate_conditional(const Expr& expr, const ScopePtr& scope);
  Value evaluate_attribute(const Expr& expr, const ScopePtr& scope);
  Value evaluate_slice(const Expr& expr, const ScopePtr& scope);
  Value evaluate_call(const Expr& expr, const ScopePtr& scope, const Value* caller);
  Value evaluate_filter(const Expr& expr, const ScopePtr& scope, const Value* input);
  Value evaluate_unary(const Expr& expr, const ScopePtr& scope);
  Arguments evaluate_arguments(const Expr& expr, const ScopePtr& scope);

  Flow execute(const Body& body, const ScopePtr& scope);
  Flow execute(const Stmt& stmt, const ScopePtr& scope);
  Flow execute_if(const Stmt& stmt, const ScopePtr& scope);
  Flow execute_for(const Stmt& stmt, const ScopePtr& scope);
  void execute_set(const Stmt& stmt, const ScopePtr& scope);
  void execute_set_block(const Stmt& stmt, const ScopePtr& scope);
  void execute_call(const Stmt& stmt, const ScopePtr& scope);
  void execute_filter(const Stmt& stmt, const ScopePtr& scope);
  Flow execute_with(const Stmt& stmt, const ScopePtr& scope);
  void output(const MarkedText& text);
  bool assign(const std::vector<std::string>& names, const Value& value, Scope& scope);
  void set_variable(const Stmt& stmt, const ScopePtr& scope, const Value& value);
  /// Runs a body and returns what it writes.
  MarkedText capture(const Body& body, const ScopePtr& scope);
  Value make_macro(const Stmt& stmt, const ScopePtr& scope);
  Value call_macro(const Stmt& stmt, const ScopePtr& scope, const Arguments& arguments);
  static ScopePtr inner(const ScopePtr& parent);
  static const Value* find(const Scope& scope, const std::string& name);

  Limits limits_;
  std::chrono::system_clock::time_point now_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
  uint32_t depth_ = 0;
  bool failed_ = false;
  Error error_;
  Position position_;
  MarkedText* out_ = nullptr;
  /// A macro holds its scope and the scope the macro; a namespace may hold itself. They are
  /// emptied at the end, so that nothing is left over.
  std::vector<ScopePtr> scopes_;
  std::vector<std::shared_ptr<Dict>> namespaces_;
};

/// A function built into the language. `parameters` are names with commas between; arguments are
/// sorted into that order, undefined where missing. "*" takes them as they come.
struct Builtin {
  std::string_view name;
  Value (*call)(Evaluator&, const Value& self, const Arguments&);
  std::string_view parameters;
};

/// Calls a builtin with its arguments in order.
Value call_builtin(Evaluator& evaluator, const Builtin& builtin, const Value& self,
                   const Arguments& arguments);

// Look-ups by name; null if there is none.
const Builtin* find_text_filter(std::string_view name);
const Builtin* find_list_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
const Builtin* find_text_method(std::string_view name);
const Builtin* find_list_method(std::string_view name);
const Builtin* find_dict_method(std::string_view name);

}  // namespace tandem::text::jinja
