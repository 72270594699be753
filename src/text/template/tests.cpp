// What may stand after `is`.
#include <algorithm>
#include <array>

#include "text/template/evaluator.h"
#include "text/template/text_ops.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

using Args = const Arguments&;

Value yes(bool value) {
  return Value::boolean(value);
}

Value is_defined(Evaluator&, const Value& v, Args) {
  return yes(!v.is_undefined());
}
Value is_undefined(Evaluator&, const Value& v, Args) {
  return yes(v.is_undefined());
}
Value is_none(Evaluator&, const Value& v, Args) {
  return yes(v.is_none());
}
Value is_boolean(Evaluator&, const Value& v, Args) {
  return yes(v.is_bool());
}
Value is_true(Evaluator&, const Value& v, Args) {
  return yes(v.is_bool() && v.as_bool());
}
Value is_false(Evaluator&, const Value& v, Args) {
  return yes(v.is_bool() && !v.as_bool());
}
Value is_integer(Evaluator&, const Value& v, Args) {
  return yes(v.is_int());
}
Value is_float(Evaluator&, const Value& v, Args) {
  return yes(v.is_float());
}
Value is_number(Evaluator&, const Value& v, Args) {
  return yes(v.is_number());
}
Value is_string(Evaluator&, const Value& v, Args) {
  return yes(v.is_string());
}
Value is_mapping(Evaluator&, const Value& v, Args) {
  return yes(v.is_dict());
}
Value is_iterable(Evaluator&, const Value& v, Args) {
  return yes(v.is_sequence() || v.is_dict() || v.is_string() || v.is_undefined());
}
Value is_sequence(Evaluator&, const Value& v, Args) {
  return yes(v.is_sequence() || v.is_dict() || v.is_string() || v.is_undefined());
}
Value is_callable(Evaluator&, const Value& v, Args) {
  return yes(v.is_function());
}
Value is_sameas(Evaluator&, const Value& v, Args a) {
  return yes(v.same_as(arg(a, 0)));
}
Value is_in(Evaluator& e, const Value& v, Args a) {
  return yes(e.contains(arg(a, 0), v));
}

Value is_eq(Evaluator& e, const Value& v, Args a) {
  return yes(e.equal(v, arg(a, 0)));
}
Value is_ne(Evaluator& e, const Value& v, Args a) {
  return yes(!e.equal(v, arg(a, 0)));
}
Value is_lt(Evaluator& e, const Value& v, Args a) {
  return yes(e.compare(v, arg(a, 0)) < 0);
}
Value is_le(Evaluator& e, const Value& v, Args a) {
  return yes(e.compare(v, arg(a, 0)) <= 0);
}
Value is_gt(Evaluator& e, const Value& v, Args a) {
  return yes(e.compare(v, arg(a, 0)) > 0);
}
Value is_ge(Evaluator& e, const Value& v, Args a) {
  return yes(e.compare(v, arg(a, 0)) >= 0);
}

Value remainder_is(Evaluator& e, const Value& v, const Value& by, int64_t wanted) {
  return yes(e.equal(e.binary("%", v, by), Value::integer(wanted)));
}
Value is_odd(Evaluator& e, const Value& v, Args) {
  return remainder_is(e, v, Value::integer(2), 1);
}
Value is_even(Evaluator& e, const Value& v, Args) {
  return remainder_is(e, v, Value::integer(2), 0);
}
Value is_divisible(Evaluator& e, const Value& v, Args a) {
  return remainder_is(e, v, arg(a, 0), 0);
}

/// As str.islower and str.isupper: some letter has a case, and none has the other one.
bool has_case(const Value& v, CharClass wanted, CharClass other) {
  if (!v.is_string()) return false;
  bool any = false;
  std::string_view rest = v.as_text().text();
  while (!rest.empty()) {
    const Utf8Char c = decode_utf8(rest);
    const unsigned found = CharClasses::get().of(c.code_point);
    if ((found & other) != 0) return false;
    any |= (found & wanted) != 0;
    rest.remove_prefix(c.length);
  }
  return any;
}
Value is_lower(Evaluator&, const Value& v, Args) {
  return yes(has_case(v, kLower, kUpper));
}
Value is_upper(Evaluator&, const Value& v, Args) {
  return yes(has_case(v, kUpper, kLower));
}

constexpr std::array kTests = {
    Builtin{"boolean", is_boolean, ""},
    Builtin{"callable", is_callable, ""},
    Builtin{"defined", is_defined, ""},
    Builtin{"divisibleby", is_divisible, "num"},
    Builtin{"eq", is_eq, "other"},
    Builtin{"equalto", is_eq, "other"},
    Builtin{"even", is_even, ""},
    Builtin{"false", is_false, ""},
    Builtin{"float", is_float, ""},
    Builtin{"ge", is_ge, "other"},
    Builtin{"greaterthan", is_gt, "other"},
    Builtin{"gt", is_gt, "other"},
    Builtin{"in", is_in, "seq"},
    Builtin{"integer", is_integer, ""},
    Builtin{"iterable", is_iterable, ""},
    Builtin{"le", is_le, "other"},
    Builtin{"lessthan", is_lt, "other"},
    Builtin{"lower", is_lower, ""},
    Builtin{"lt", is_lt, "other"},
    Builtin{"mapping", is_mapping, ""},
    Builtin{"ne", is_ne, "other"},
    Builtin{"none", is_none, ""},
    Builtin{"number", is_number, ""},
    Builtin{"odd", is_odd, ""},
    Builtin{"sameas", is_sameas, "other"},
    Builtin{"sequence", is_sequence, ""},
    Builtin{"string", is_string, ""},
    Builtin{"true", is_true, ""},
    Builtin{"undefined", is_undefined, ""},
    Builtin{"upper", is_upper, ""},
    Builtin{"==", is_eq, "other"},
    Builtin{"!=", is_ne, "other"},
    Builtin{"<", is_lt, "other"},
    Builtin{"<=", is_le, "other"},
    Builtin{">", is_gt, "other"},
    Builtin{">=", is_ge, "other"},
};

}  // namespace

const Builtin* find_test(std::string_view name) {
  for (const Builtin& builtin : kTests) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

}  // namespace tandem::text::jinja
