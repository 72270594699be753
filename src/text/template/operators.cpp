// What operators and look-ups do to values, after Python.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/template/evaluator.h"
#include "text/template/loop_state.h"
#include "text/template/python.h"
#include "text/template/text_ops.h"

namespace tandem::text::jinja {

namespace {

Value overflow(Evaluator& evaluator) {
  return evaluator.fail("an integer does not fit 64 bits");
}

Value integer_power(Evaluator& evaluator, int64_t base, int64_t exponent, bool outside) {
  if (exponent < 0) {
    return Value::number(std::pow(static_cast<double>(base), static_cast<double>(exponent)),
                         outside);
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return overflow(evaluator);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow(evaluator);
  }
  return Value::integer(result, outside);
}

Value integers(Evaluator& evaluator, std::string_view op, int64_t a, int64_t b, bool outside) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) return overflow(evaluator);
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) return overflow(evaluator);
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) return overflow(evaluator);
  } else if (op == "**") {
    return integer_power(evaluator, a, b, outside);
  } else {
    if (b == 0) return evaluator.fail("division by zero");
    if (op == "/") return Value::number(static_cast<double>(a) / static_cast<double>(b), outside);
    if (a == INT64_MIN && b == -1) return overflow(evaluator);
    const int64_t quotient = a / b;
    const int64_t remainder = a % b;
    // Python rounds down, and the remainder has the divisor's sign.
    const bool down = remainder != 0 && (remainder < 0) != (b < 0);
    result = op == "//" ? quotient - (down ? 1 : 0) : remainder + (down ? b : 0);
  }
  return Value::integer(result, outside);
}

Value floats(Evaluator& evaluator, std::string_view op, double a, double b, bool outside) {
  if (op == "+") return Value::number(a + b, outside);
  if (op == "-") return Value::number(a - b, outside);
  if (op == "*") return Value::number(a * b, outside);
  if (op == "**") return Value::number(std::pow(a, b), outside);
  if (b == 0) return evaluator.fail("division by zero");
  if (op == "/") return Value::number(a / b, outside);
  const double down = std::floor(a / b);
  return Value::number(op == "//" ? down : a - down * b, outside);
}

Value repeat(Evaluator& evaluator, const Value& value, int64_t count) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const uint64_t size =
      value.is_string() ? value.as_text().size() * 2 : value.as_list().size() * sizeof(Value);
  if (size != 0 && times > UINT64_MAX / size) return evaluator.fail("a repetition is too long");
  if (!evaluator.allows(times * size) || (size != 0 && !evaluator.step(times))) return {};
  MarkedText text;
  List items;
  for (uint64_t i = 0; i < times && size != 0; ++i) {
    if (value.is_string()) {
      text.append(value.as_text());
    } else {
      items.insert(items.end(), value.as_list().begin(), value.as_list().end());
    }
  }
  return value.is_string() ? evaluator.text(std::move(text)) : evaluator.list(std::move(items));
}

/// "%s of %d" % value
Value format_percent(Evaluator& evaluator, const MarkedText& format, const Value& value) {
  Arguments arguments;
  arguments.positional.push_back(Value::string(format));
  if (value.is_tuple()) {
    const List& items = value.as_list();
    arguments.positional.insert(arguments.positional.end(), items.begin(), items.end());
  } else {
    arguments.positional.push_back(value);
  }
  const Value self = arguments.positional.front();
  arguments.positional.erase(arguments.positional.begin());
  return evaluator.filter("format", self, arguments);
}

const Builtin* find_method(const Value& object, std::string_view name) {
  if (object.is_string()) return find_text_method(name);
  if (object.is_sequence()) return find_list_method(name);
  if (object.is_dict()) return find_dict_method(name);
  return nullptr;
}

Value bind(const Builtin& method, const Value& object) {
  return Value::function([&method, object](Evaluator& evaluator, const Arguments& arguments) {
    return call_builtin(evaluator, method, object, arguments);
  });
}

}  // namespace

Value Evaluator::binary(std::string_view op, const Value& a, const Value& b) {
  if (failed_) return {};
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return fail("\"" + value->undefined_name() + "\" is undefined");
  }
  const bool outside = a.from_outside() || b.from_outside();
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return floats(*this, op, a.as_float(), b.as_float(), outside);
    return integers(*this, op, a.as_int(), b.as_int(), outside);
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    if (!allows((a.as_text().size() + b.as_text().size()) * 2)) return {};
    MarkedText joined = a.as_text();
    joined.append(b.as_text());
    return text(std::move(joined));
  }
  if (op == "+" && a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple()) {
    if (!allows((a.as_list().size() + b.as_list().size()) * sizeof(Value))) return {};
    List joined = a.as_list();
    joined.insert(joined.end(), b.as_list().begin(), b.as_list().end());
    return a.is_tuple() ? tuple(std::move(joined)) : list(std::move(joined));
  }
  if (op == "*") {
    if ((a.is_string() || a.is_sequence()) && b.is_number() && !b.is_float()) {
      return repeat(*this, a, b.as_int());
    }
    if ((b.is_string() || b.is_sequence()) && a.is_number() && !a.is_float()) {
      return repeat(*this, b, a.as_int());
    }
  }
  if (op == "%" && a.is_string()) return format_percent(*this, a.as_text(), b);
  return fail("\"" + std::string(op) + "\" does not work on " + std::string(a.type_name()) +
              " and " + std::string(b.type_name()));
}

bool Evaluator::equal(const Value& a, const Value& b) {
  if (!step() || !charge_scan(a)) return false;
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_float() == b.as_float();
    return a.as_int() == b.as_int();
  }
  if (a.is_sequence() && b.is_sequence()) {
    if (a.is_tuple() != b.is_tuple() || a.as_list().size() != b.as_list().size()) return false;
    for (size_t i = 0; i < a.as_list().size(); ++i) {
      if (!equal(a.as_list()[i], b.as_list()[i])) return false;
    }
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.as_dict().size() != b.as_dict().size()) return false;
    for (const auto& [key, value] : a.as_dict().entries()) {
      const Value* other = b.as_dict().find(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  return a.same_as(b);
}

int Evaluator::compare(const Value& a, const Value& b) {
  if (!step() || !charge_scan(a)) return 0;
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) {
      return a.as_float() < b.as_float() ? -1 : a.as_float() > b.as_float() ? 1 : 0;
    }
    return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  }
  if (a.is_string() && b.is_string()) return a.as_text().text().compare(b.as_text().text());
  if (a.is_sequence() && b.is_sequence()) {
    const List& left = a.as_list();
    const List& right = b.as_list();
    for (size_t i = 0; i < left.size() && i < right.size(); ++i) {
      if (!equal(left[i], right[i])) return compare(left[i], right[i]);
      if (failed_) return 0;
    }
    return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  }
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) fail("\"" + value->undefined_name() + "\" is undefined");
  }
  fail("values of types " + std::string(a.type_name()) + " and " + std::string(b.type_name()) +
       " have no order");
  return 0;
}

bool Evaluator::contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      fail("only a string can be in a string, found " + std::string(item.type_name()));
      return false;
    }
    if (!charge_scan(container) || !charge_scan(item)) return false;
    return find_text(container.as_text().text(), item.as_text().text()) != std::string::npos;
  }
  if (container.is_dict()) return charge_scan(item) && container.as_dict().find(item) != nullptr;
  if (container.is_undefined()) return false;
  const std::shared_ptr<const List> items = iterate(container);
  return std::any_of(items->begin(), items->end(),
                     [&](const Value& candidate) { return equal(candidate, item); });
}

Value Evaluator::attribute(const Value& object, std::string_view name) {
  if (failed_) return {};
  if (object.is_undefined()) {
    return fail("\"" + object.undefined_name() + "\" is undefined, it has no \"" +
                std::string(name) + "\"");
  }
  if (const Builtin* method = find_method(object, name)) return bind(*method, object);
  const Value* found = object.is_dict()        ? object.as_dict().find(name)
                       : object.is_namespace() ? object.as_namespace().find(name)
                                               : nullptr;
  return found != nullptr ? *found : Value::undefined(name);
}

Value Evaluator::item(const Value& object, const Value& key) {
  if (failed_) return {};
  if (object.is_undefined()) {
    return fail("\"" + object.undefined_name() + "\" is undefined, it has no items");
  }
  if (!charge_scan(key) || (object.is_string() && !charge_scan(object))) return {};
  if (object.is_dict()) {
    if (const Value* found = object.as_dict().find(key)) return *found;
  } else if (object.is_namespace() && key.is_string()) {
    if (const Value* found = object.as_namespace().find(key)) return *found;
  } else if ((key.is_int() || key.is_bool()) && (object.is_sequence() || object.is_string())) {
    const std::vector<size_t> offsets =
        object.is_string() ? character_offsets(object.as_text()) : std::vector<size_t>();
    const auto size =
        static_cast<int64_t>(object.is_string() ? offsets.size() - 1 : object.as_list().size());
    const int64_t index = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (index < 0 || index >= size) return Value::undefined("item " + std::to_string(key.as_int()));
    const auto at = static_cast<size_t>(index);
    if (!object.is_string()) return object.as_list()[at];
    return text(object.as_text().substr(offsets[at], offsets[at + 1] - offsets[at]));
  }
  if (!key.is_string()) {
    return Value::undefined(to_repr(*this, key).text().substr(0, 60));
  }
  const std::string& name = key.as_text().text();
  if (const Builtin* method = find_method(object, name)) return bind(*method, object);
  return Value::undefined(name.substr(0, 60));
}

Value Evaluator::path(const Value& object, std::string_view path) {
  Value value = object;
  while (!failed_) {
    const size_t dot = path.find('.');
    const std::string_view name = path.substr(0, dot);
    int64_t index = 0;
    const auto number = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_number = number.ec == std::errc() && number.ptr == name.data() + name.size();
    value = item(value, is_number ? Value::integer(index) : Value::string(name));
    if (dot == std::string_view::npos) return value;
    path.remove_prefix(dot + 1);
  }
  return {};
}

Value loop_member(const std::shared_ptr<LoopState>& loop, std::string_view name) {
  const auto index = static_cast<int64_t>(loop->index);
  const auto length = static_cast<int64_t>(loop->items->size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(loop->depth);
  if (name == "depth0") return Value::integer(loop->depth - 1);
  if (name == "previtem" && index > 0) return (*loop->items)[loop->index - 1];
  if (name == "nextitem" && index + 1 < length) return (*loop->items)[loop->index + 1];
  if (name == "cycle") {
    return Value::function([at = loop->index](Evaluator& evaluator, const Arguments& arguments) {
      if (arguments.positional.empty()) return evaluator.fail("loop.cycle without arguments");
      return arguments.positional[at % arguments.positional.size()];
    });
  }
  if (name == "changed") {
    return Value::function([loop](Evaluator& evaluator, const Arguments& arguments) {
      const bool same =
          loop->last_changed.has_value() &&
          evaluator.equal(Value::list(*loop->last_changed), Value::list(arguments.positional));
      // The loop's memory must not hold what holds the loop.
      for (const Value& value : arguments.positional) {
        if (value.is_function() || value.is_namespace() || value.depth() > 0) {
          return evaluator.fail("loop.changed takes strings and numbers only");
        }
      }
      loop->last_changed = arguments.positional;
      return Value::boolean(!same);
    });
  }
  return Value::undefined(name);
}

}  // namespace tandem::text::jinja
